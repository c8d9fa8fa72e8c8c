// The comparison of collectives with torch's: what it makes of the figures.
// Both sides are scripts here that print known ones.
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

// A program that prints `body`'s lines. $n is how often it has been called.
std::string Script(const std::string& name, const std::string& body) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  EXPECT_OK(WriteFile(path, absl::StrCat("#!/bin/sh\necho call >>", path,
                                         ".calls\nn=$(grep -c call ", path,
                                         ".calls)\n", body)));
  (void)std::remove((path + ".calls").c_str());
  EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  return path;
}

std::string Line(const std::string& bytes, const std::string& operation,
                 const std::string& path, const std::string& time,
                 const std::string& bus) {
  return absl::StrCat("echo '   ", bytes, "   9   float  sum  ", operation,
                      "  ", path, "   ", time, "   9.99  ", bus, "'\n");
}

// Each of its lines, with a time and a bandwidth that depend on the path.
std::string Table(const std::string& head, const std::string& plain_time,
                  const std::string& buffer_time) {
  std::string text = absl::StrCat("echo '# ", head, ", 2 ranks'\n",
                                  Line("0", "barrier", "-", "50.0", "0.00"));
  for (const char* operation :
       {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
    text += Line("64", operation, "plain", plain_time, "1.50");
    text += Line("64", operation, "buffer", buffer_time, "8.00");
  }
  return text + Line("64", "all_gather", "in place", "1.0", "99.0");
}

ProgramResult Compare(const std::string& collectives,
                      const std::string& python) {
  return RunProgram("tools/bench/compare_collectives",
                    {"--collectives=" + collectives, "--python=" + python,
                     "--rounds=3", "--bytes=64"});
}

TEST(CompareCollectivesTest, MediansOfRatiosOfTheSameRound) {
  // Ours takes 100, 200 and 300 us over gloo, and 20 us in shared memory;
  // torch 600 us at all times.
  std::string ours =
      Table("gloo", "PLAIN", "7.0") + Table("shared_memory", "40.0", "20.0");
  for (size_t at = 0; (at = ours.find("PLAIN", at)) != std::string::npos;) {
    ours.replace(at, 5, "'$n'00.0");
  }
  const std::string torch =
      absl::StrCat("case \"$1\" in -c) echo 9.9; exit;; esac\n",
                   Table("torch 9.9 gloo", "600.0", "5.0"));
  const ProgramResult run =
      Compare(Script("collectives", ours), Script("torch", torch));
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(
      run.output,
      AllOf(HasSubstr("| barrier |  | 50 us | 50 us | 1.00 (1.00 to 1.00) | "),
            HasSubstr("| all_gather | 64 | 600 us, 1.50 GB/s | 200 us, 1.50 "
                      "GB/s | 3.00 (2.00 to 6.00) | 20 us, 8.00 GB/s | 30.00 "
                      "(30.00 to 30.00) |"),
            HasSubstr("| broadcast | 64 | 600 us, 1.50 GB/s | 200 us, 1.50 "
                      "GB/s | 3.00 (2.00 to 6.00) | 40 us, 1.50 GB/s | 15.00"),
            HasSubstr("torch 9.9"), HasSubstr("3 rounds")));
}

TEST(CompareCollectivesTest, WhatFailsIsShown) {
  const std::string good = Script("good", Table("gloo", "1.0", "1.0"));
  const ProgramResult bad =
      Compare(good, Script("bad", "echo no module torch >&2; exit 3\n"));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.output,
              AllOf(HasSubstr("exit code 3"), HasSubstr("no module torch"),
                    Not(HasSubstr("| operation |"))));
  const ProgramResult none = Compare(::testing::TempDir() + "/none", good);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.output, HasSubstr("bazel build //tools/bench:collectives"));
}

}  // namespace
}  // namespace tessera
