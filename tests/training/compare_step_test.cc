// The comparison with torch: what it runs in which order, and what it makes of
// the figures. Both sides are scripts here that print known ones.
#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"
#include "tests/training/run_program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CompareStepTest : public ::testing::Test {
 protected:
  CompareStepTest() : folder_(::testing::TempDir()) {
    (void)std::remove((folder_ + "/calls").c_str());
  }

  // A program that notes the call, and prints `body`'s lines. $n is how often
  // it has been called.
  std::string Script(const std::string& name, const std::string& body) const {
    const std::string path = folder_ + "/" + name;
    EXPECT_OK(
        WriteFile(path, absl::StrCat("#!/bin/sh\ncd ", folder_, "\necho ", name,
                                     " \"$@\" >>calls\n", "n=$(grep -c \"^",
                                     name, " .*--mode\" calls)\n", body)));
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    return path;
  }

  ProgramResult Compare(const std::string& step, const std::string& python,
                        int rounds) const {
    return RunProgram("tools/bench/compare_step",
                      {"--step=" + step, "--python=" + python,
                       absl::StrCat("--rounds=", rounds)});
  }

  const std::string folder_;
};

// The second rank is the slower one and the larger.
constexpr char kStep[] = R"(case "$*" in
*mode=fsdp*)
  echo "RESULT tessera fsdp rank 0/2 threads=1 bf16=0 B=2 T=64 L=12: min 0.1 median 0.$n first 9 s, PSS 90 MB"
  echo "[rank 1] RESULT tessera fsdp rank 1/2 threads=1 bf16=0 B=2 T=64 L=12: min 0.1 median 1.000 first 9 s, PSS 110 MB";;
*)
  echo "RESULT tessera single rank 0/1 threads=2 bf16=0 B=4 T=64 L=12: min 0.1 median 0.500 first 9 s, PSS 300 MB";;
esac
)";
constexpr char kTorch[] = R"(case "$*" in
*mode=fsdp2*)
  echo "noise"
  echo "RESULT fsdp2 rank 0/2 threads=1 bf16=False B=2 T=64 L=12: min 0.1 median 4.000 first 9 s, PSS 400 RSS 5 MB, start 3 s"
  echo "RESULT fsdp2 rank 1/2 threads=1 bf16=False B=2 T=64 L=12: min 0.1 median 3.000 first 9 s, PSS 400 RSS 5 MB, start 3 s";;
*mode=single*)
  echo "RESULT single rank 0/1 threads=2 bf16=False B=4 T=64 L=12: min 0.1 median $n.000 first 9 s, PSS 600 RSS 5 MB, start 3 s";;
*) echo 9.9;;
esac
)";

TEST_F(CompareStepTest, MediansOfRatiosTakenInTurn) {
  const ProgramResult run =
      Compare(Script("step", kStep), Script("torch", kTorch), 3);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  // Torch's calls of one process are its first, fourth and fifth.
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("one process, 2 threads, B 4 | 0.500 s, 300 MB | "
                              "4.000 s, 600 MB | 8.00 (2.00 to 10.00) | 0.50"),
                    HasSubstr("| 1.000 s, 100 MB | 4.000 s, 400 MB | 4.00 "
                              "(4.00 to 4.00) | 0.25"),
                    HasSubstr("both tessera: 2.00 (2.00 to 2.00) of the time, "
                              "0.33 (0.33 to 0.33) of the memory"),
                    HasSubstr("torch 9.9"), HasSubstr("3 rounds")));
  const std::string calls = *ReadFile(folder_ + "/calls");
  std::string order;
  for (size_t at = 0; (at = calls.find("--mode=", at)) != std::string::npos;
       at += 7) {
    order += calls.substr(at + 7, 1);
  }
  EXPECT_EQ(order, "ssffffssssff");
  EXPECT_THAT(calls, HasSubstr("step --mode=single --threads=2 --batch=4 "));
  EXPECT_THAT(calls, HasSubstr("step --mode=fsdp --ranks=2 --threads=1 "
                               "--batch=2 --layers=12 --seq=64 --steps=6"));
  EXPECT_THAT(calls, HasSubstr("--nproc_per_node=2"));
}

TEST_F(CompareStepTest, WhatFailsIsShown) {
  const std::string good = Script("step", kStep);
  const ProgramResult bad =
      Compare(good, Script("torch", "echo no module torch >&2; exit 3\n"), 1);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.output,
              AllOf(HasSubstr("exit code 3"), HasSubstr("no module torch"),
                    Not(HasSubstr("| what |"))));
  const ProgramResult none = Compare(folder_ + "/none", good, 1);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.output, HasSubstr("bazel build //tools/bench:step"));
}

}  // namespace
}  // namespace tessera
