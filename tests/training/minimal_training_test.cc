// The program that README.md shows is one that builds and runs.
#include <string>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"
#include "tests/training/run_program.h"

namespace tessera {
namespace {

TEST(MinimalTrainingTest, TheReadmeShowsTheProgram) {
  const auto readme = ReadFile("README.md");
  const auto program = ReadFile("tools/examples/minimal_training.cc");
  ASSERT_OK(readme);
  ASSERT_OK(program);
  EXPECT_NE(readme->find("```cpp\n" + *program + "```\n"), std::string::npos)
      << "the program in README.md is not tools/examples/minimal_training.cc";
}

TEST(MinimalTrainingTest, WithoutArgumentsItSaysWhatItTakes) {
  const ProgramResult run = RunProgram("tools/examples/minimal_training", {});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.output, "usage: minimal_training TEXT TOKEN_FOLDER\n");
}

TEST(MinimalTrainingTest, TheProgramLearns) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "over and over again, ";
  const std::string path = ::testing::TempDir() + "/text";
  ASSERT_OK(WriteFile(path, text));
  const ProgramResult run =
      RunProgram("tools/examples/minimal_training",
                 {path, ::testing::TempDir() + "/tokens"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const size_t last = run.output.find("step 20: loss ");
  ASSERT_NE(last, std::string::npos) << run.output;
  EXPECT_LT(std::stod(run.output.substr(last + 14)), 4.0) << run.output;
}

}  // namespace
}  // namespace tessera
