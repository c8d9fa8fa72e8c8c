// Flags come from a file under the same names, and a wrong name or value is an
// error that says which, where, and what was meant.
#include "tools/flag_file.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

ABSL_FLAG(int64_t, batch, 1, "");
ABSL_FLAG(double, rate, 1, "");
ABSL_FLAG(double, epochs, 1, "");
ABSL_FLAG(bool, dry, false, "");
ABSL_FLAG(std::vector<std::string>, text, {}, "");

namespace tessera {
namespace {

constexpr const char* kSource = "flag_file_test";
constexpr auto kWrong = absl::StatusCode::kInvalidArgument;

absl::Status Load(const std::string& yaml) {
  const std::string path = ::testing::TempDir() + "/flags.yaml";
  EXPECT_OK(WriteFile(path, yaml));
  return LoadFlagFile(path, kSource);
}

TEST(FlagFileTest, ValuesAndListsSetFlags) {
  ASSERT_OK(Load("batch: 7\nrate: 2e-3\ndry: true\ntext: [a, 'b c']\n"));
  EXPECT_EQ(absl::GetFlag(FLAGS_batch), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_rate), 2e-3);
  EXPECT_TRUE(absl::GetFlag(FLAGS_dry));
  EXPECT_EQ(absl::GetFlag(FLAGS_text), (std::vector<std::string>{"a", "b c"}));
  ASSERT_OK(Load("# nothing\n"));
  ASSERT_OK(Load("text:\n"));
  EXPECT_TRUE(absl::GetFlag(FLAGS_text).empty());
}

// A default that a file names is meant, too.
TEST(FlagFileTest, NamesInFilesAreKnown) {
  EXPECT_FALSE(IsNamed("epochs"));
  ASSERT_OK(Load("epochs: 1\n"));
  EXPECT_TRUE(IsNamed("epochs"));
  EXPECT_FALSE(IsGiven("epochs"));
}

TEST(FlagFileTest, WrongFilesSayWhere) {
  EXPECT_THAT(Load("rate: 1\nbtach: 7\n"),
              StatusIs(kWrong,
                       "flags.yaml:2: unknown option \"btach\"; the "
                       "nearest is \"batch\""));
  EXPECT_THAT(Load("batch: many\n"),
              StatusIs(kWrong, "flags.yaml:1: batch: \"many\""));
  EXPECT_THAT(Load("batch: {a: 1}\n"), StatusIs(kWrong, "batch: wanted a"));
  EXPECT_THAT(Load("text: [[a]]\n"), StatusIs(kWrong, "text: wanted a list"));
  EXPECT_THAT(Load("- batch\n"), StatusIs(kWrong, "\"option: value\""));
  EXPECT_THAT(Load("batch: [1\n"), StatusIs(kWrong, "flags.yaml"));
  EXPECT_THAT(Load("batch: 1\nrate: 1\nbatch: 2\n"),
              StatusIs(kWrong, "flags.yaml:3: \"batch\" is given twice"));
  EXPECT_THAT(Load("config: other.yaml\n"),
              StatusIs(kWrong, "a file of options names no other"));
  EXPECT_THAT(Load("batch: 1\n---\nbatch: 2\n"),
              StatusIs(kWrong, "wanted one document, got 2"));
  EXPECT_THAT(LoadFlagFile("/none.yaml", kSource),
              StatusIs(absl::StatusCode::kNotFound, "/none.yaml"));
}

TEST(FlagFileTest, FlagsOfOtherFilesAreUnknown) {
  EXPECT_THAT(Load("help: true\n"), StatusIs(kWrong, "\"help\""));
}

absl::Status Check(std::vector<std::string> arguments) {
  std::vector<char*> argv = {arguments[0].data()};
  for (size_t i = 1; i < arguments.size(); ++i) {
    argv.push_back(arguments[i].data());
  }
  return CheckArguments(static_cast<int>(argv.size()), argv.data(), kSource);
}

TEST(FlagFileTest, UnknownArgumentsNameTheNearest) {
  EXPECT_OK(Check({"p", "--batch=3", "-rate", "-1", "--nodry", "--help"}));
  EXPECT_THAT(Check({"p", "--bach=3"}), StatusIs(kWrong, "is \"batch\""));
  EXPECT_THAT(Check({"p", "--norate_", "3"}), StatusIs(kWrong, "\"norate_\""));
}

TEST(FlagFileTest, TheConfigFlagIsFoundBeforeParsing) {
  const auto find = [](std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    return FindConfigFlag(static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_EQ(find({"p", "--batch=1", "--config=a.yaml"}), "a.yaml");
  EXPECT_EQ(find({"p", "-config", "b"}), "b");
  EXPECT_EQ(find({"p", "--config"}), "");
  EXPECT_EQ(find({"p", "--", "--config=a"}), "");
  EXPECT_EQ(find({"p", "--configs=a"}), "");
}

TEST(FlagFileTest, TheNearestNameNeedsTheFewestChanges) {
  EXPECT_EQ(Nearest("warmpu", {"batch", "warmup", "war"}), "warmup");
  EXPECT_EQ(Nearest("x", {}), "");
}

}  // namespace
}  // namespace tessera
