// Ranks that are started one by one, by hand or by a cluster: what is wrong
// with one of them ends all of them soon, each with the reason.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

// Ranks that wait for one another until their time-out take a minute.
constexpr double kSoonSeconds = 45;

// A port that nobody else uses; with `listens`, as a program that says nothing.
class Port {
 public:
  explicit Port(bool listens = false) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    const bool bound = bind(fd_, any, length) == 0 &&
                       getsockname(fd_, any, &length) == 0 &&
                       (!listens || listen(fd_, 16) == 0);
    number_ = bound ? ntohs(address.sin_port) : 0;
    if (!listens) Close();
  }
  ~Port() { Close(); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  int number() const { return number_; }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  int fd_;
  int number_ = 0;
};

class HandStartedRanksTest : public SmallRuns {
 protected:
  std::unique_ptr<Program> Start(int rank, int num_ranks, int port,
                                 const Strings& more = {},
                                 const std::string& host = "127.0.0.1") const {
    return std::make_unique<Program>(
        "tools/train", Arguments("out", more),
        Strings{absl::StrCat("RANK=", rank),
                absl::StrCat("WORLD_SIZE=", num_ranks),
                absl::StrCat("MASTER_ADDR=", host),
                absl::StrCat("MASTER_PORT=", port)});
  }

  // Three ranks, of which `wrong` has `flag` too: all end soon with `error`.
  void ExpectAllEnd(int wrong, const std::string& flag,
                    const std::string& error) const {
    SCOPED_TRACE(absl::StrCat("rank ", wrong, " ", flag));
    const Port port;
    std::vector<std::unique_ptr<Program>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(Start(rank, 3, port.number(),
                            rank == wrong ? Strings{flag} : Strings{}));
    }
    for (int rank = 0; rank < 3; ++rank) {
      const ProgramResult run = ranks[rank]->Wait();
      EXPECT_EQ(run.exit_code, 1) << run.output;
      EXPECT_LT(run.seconds, kSoonSeconds) << run.output;
      EXPECT_THAT(run.output, HasSubstr(error)) << rank;
      if (rank != wrong) {
        EXPECT_THAT(run.output, HasSubstr(absl::StrCat("rank ", wrong)));
      }
    }
  }
};

TEST_F(HandStartedRanksTest, TheyTrain) {
  const Port port;
  const auto other = Start(1, 2, port.number());
  const ProgramResult first = Start(0, 2, port.number())->Wait();
  EXPECT_EQ(first.exit_code, 0) << first.output;
  EXPECT_EQ(other->Wait().exit_code, 0);
  EXPECT_EQ(Metrics(Path("out/metrics.jsonl")).size(), 6u);
}

TEST_F(HandStartedRanksTest, AWrongFlagOfOneEndsAll) {
  ExpectAllEnd(2, "--lr=-1", "lr");
  ExpectAllEnd(0, "--batches=3", "unknown option \"batches\"");
  ExpectAllEnd(1, "--batch=many", "\"many\"");
}

TEST_F(HandStartedRanksTest, AMissingTextOfOneEndsAll) {
  ExpectAllEnd(1, "--text=/no/such/text", "/no/such/text");
}

TEST_F(HandStartedRanksTest, OtherOptionsOfOneEndAll) {
  ExpectAllEnd(2, "--lr=3e-3", "lr");
}

TEST_F(HandStartedRanksTest, AnotherNumberThanTheLaunchersEndsAll) {
  ExpectAllEnd(1, "--ranks=5", "--ranks: wanted 0 or ");
}

TEST_F(HandStartedRanksTest, AnotherNumberOfRanksEndsAll) {
  const Port port;
  const auto other = Start(1, 3, port.number());
  const ProgramResult first = Start(0, 2, port.number())->Wait();
  for (const ProgramResult& run : {first, other->Wait()}) {
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_LT(run.seconds, kSoonSeconds);
    EXPECT_THAT(run.output, HasSubstr("was told of 3 ranks"));
  }
}

TEST_F(HandStartedRanksTest, APortThatAnotherProgramHasEndsAll) {
  const Port foreign(/*listens=*/true);
  const auto other = Start(1, 2, foreign.number());
  const ProgramResult first = Start(0, 2, foreign.number())->Wait();
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_THAT(first.output, HasSubstr("is in use on this host"));
  const ProgramResult second = other->Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_LT(second.seconds, kSoonSeconds);
  EXPECT_THAT(second.output, HasSubstr("another program has this port"));
}

TEST_F(HandStartedRanksTest, AHostThatIsNotKnownIsAnError) {
  const ProgramResult run =
      Start(1, 2, 29500, {}, "no-such-host.invalid")->Wait();
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_LT(run.seconds, kSoonSeconds);
  EXPECT_THAT(run.output, HasSubstr("host 'no-such-host.invalid'"));
  EXPECT_THAT(run.output, HasSubstr("set MASTER_ADDR"));
}

TEST_F(HandStartedRanksTest, ASignalEndsTheWait) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Port port;
    const auto rank = Start(0, 2, port.number());
    absl::SleepFor(absl::Seconds(2));  // It waits, or has not begun to.
    rank->Signal(signal);
    const ProgramResult run = rank->Wait();
    EXPECT_EQ(run.exit_code, 128 + signal) << run.output;
    EXPECT_LT(run.seconds, kSoonSeconds);
  }
}

}  // namespace
}  // namespace tessera
