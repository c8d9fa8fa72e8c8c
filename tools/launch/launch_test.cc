#include "tools/launch/launch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

struct Line {
  int rank;
  bool is_error;
  std::string text;

  friend bool operator==(const Line&, const Line&) = default;
};

class LaunchTest : public testing::Test {
 protected:
  LaunchOptions Shell(int num_ranks, const std::string& script) {
    return {
        .num_ranks = num_ranks,
        .command = {"/bin/sh", "-c", script},
        .grace = absl::Seconds(1),
        .request_grace = absl::Seconds(1),
        .on_line = [this](int rank, bool is_error, const std::string& text) {
          lines_.push_back({rank, is_error, text});
        }};
  }
  bool Has(const Line& line) const {
    return std::find(lines_.begin(), lines_.end(), line) != lines_.end();
  }

  std::vector<Line> lines_;
};

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool WaitForFile(const std::string& path) {
  for (int i = 0; i < 500 && FileText(path).empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  return !FileText(path).empty();
}

bool WaitUntilGone(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    if (kill(pid, 0) != 0) return true;
    // A zombie of a test that has no init to reap it counts as gone.
    if (FileText(absl::StrCat("/proc/", pid, "/stat")).find(") Z") !=
        std::string::npos) {
      return true;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST_F(LaunchTest, RanksKnowWhoTheyAre) {
  const auto result = Launch(Shell(
      3,
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; "
      "test $MASTER_PORT -gt 0; printf 'no end of line' >&2"));
  ASSERT_OK(result);
  EXPECT_EQ(result->exit_code, 0);
  EXPECT_EQ(result->first_failed_rank, -1);
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(Has({r, false, absl::StrCat(r, "/3 ", r, "/3 127.0.0.1")}));
    EXPECT_TRUE(Has({r, true, "no end of line"}));
  }
}

TEST_F(LaunchTest, AFailureEndsAll) {
  const absl::Time start = absl::Now();
  const auto result = Launch(
      Shell(3, "if [ $RANK = 1 ]; then echo broken >&2; exit 7; fi; sleep 60"));
  ASSERT_OK(result);
  EXPECT_EQ(result->exit_code, 7);
  EXPECT_EQ(result->first_failed_rank, 1);
  EXPECT_EQ(result->error, "rank 1 ended with exit code 7");
  EXPECT_TRUE(Has({1, true, "broken"}));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(LaunchTest, WhatSeveralRanksSayLastIsWrittenOnce) {
  LaunchOptions options =
      Shell(4,
            "trap '' TERM; echo hello >&2; sleep 1.$RANK; "
            "if [ $RANK = 2 ]; then echo 'end: of two' >&2; exit 1; fi; "
            "echo 'end: of many' >&2; echo more >&2; exit 1");
  options.last_words = "end: ";
  options.grace = absl::Seconds(10);
  const auto result = Launch(options);
  ASSERT_OK(result);
  int num_many = 0, num_more = 0, num_hello = 0;
  for (const Line& line : lines_) {
    num_many += line.text == "end: of many" ? 1 : 0;
    num_more += line.text == "more" ? 1 : 0;
    num_hello += line.text == "hello" ? 1 : 0;
  }
  EXPECT_EQ(num_many, 1);
  EXPECT_EQ(num_more, 1);
  EXPECT_EQ(num_hello, 4);  // No last words.
  EXPECT_TRUE(Has({2, true, "end: of two"}));
  const bool said = std::any_of(lines_.begin(), lines_.end(), [](auto& line) {
    return line.text.starts_with("so say ranks ");
  });
  EXPECT_TRUE(said);
}

TEST_F(LaunchTest, ARankThatDoesNotEndIsKilled) {
  const absl::Time start = absl::Now();
  const auto result =
      Launch(Shell(2,
                   "if [ $RANK = 0 ]; then sleep 0.2; kill -9 $$; fi; "
                   "trap '' TERM; while true; do sleep 0.1; done"));
  ASSERT_OK(result);
  EXPECT_EQ(result->exit_code, 128 + SIGKILL);
  EXPECT_EQ(result->first_failed_rank, 0);
  EXPECT_NE(result->error.find("ended by signal 9"), std::string::npos);
  EXPECT_GT(absl::Now() - start, absl::Seconds(1));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST_F(LaunchTest, AProgramThatIsNotThere) {
  LaunchOptions options = Shell(2, "");
  options.command = {"/no/such/program"};
  const auto result = Launch(options);
  ASSERT_OK(result);
  EXPECT_EQ(result->exit_code, 127);
  EXPECT_TRUE(Has({0, true, "/no/such/program: No such file or directory"}) ||
              Has({1, true, "/no/such/program: No such file or directory"}));
  options.num_ranks = 0;
  EXPECT_THAT(Launch(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "at least 1 rank"));
}

TEST_F(LaunchTest, SignalsArePassedOn) {
  const std::string file = absl::StrCat(testing::TempDir(), "/ready");
  const pid_t launcher = fork();
  if (launcher == 0) {
    const auto result = Launch(
        Shell(2, absl::StrCat("trap 'echo saved; exit 0' TERM; echo x >> ",
                              file, "; while true; do sleep 0.05; done")));
    const bool right = result.ok() && result->exit_code == 0 &&
                       Has({0, false, "saved"}) && Has({1, false, "saved"});
    _exit(right ? 0 : 1);
  }
  ASSERT_TRUE(WaitForFile(file));
  absl::SleepFor(absl::Milliseconds(200));
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(LaunchTest, NoOrphans) {
  const std::string file = absl::StrCat(testing::TempDir(), "/pid");
  const pid_t launcher = fork();
  if (launcher == 0) {
    (void)Launch(Shell(1, absl::StrCat("echo $$ > ", file, "; exec sleep 60")));
    _exit(0);
  }
  ASSERT_TRUE(WaitForFile(file));
  const pid_t rank = std::stoi(FileText(file));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(WaitUntilGone(rank));
}

}  // namespace
}  // namespace tessera
