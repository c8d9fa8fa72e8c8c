// Of the suite for all communicators: ranks that differ, are late, end or fail.
// All ranks get a bounded error that says which.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"
#include "tests/testing/communicator_conformance.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using CommunicatorErrorsTest = CommunicatorTest;

// Rank 0 does one thing, the others another: all learn of both.
void ExpectMismatch(const std::shared_ptr<Communicator>& comm,
                    const std::function<absl::Status(Stream&)>& rank_0,
                    const std::function<absl::Status(Stream&)>& others,
                    const std::vector<std::string>& texts) {
  Stream stream = InlineStream();
  const absl::Status status =
      comm->rank() == 0 ? rank_0(stream) : others(stream);
  for (const std::string& text : texts) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, text));
  }
  // Nothing works after it, and nothing waits.
  EXPECT_THAT(comm->Barrier(stream, "later"),
              StatusIs(absl::StatusCode::kFailedPrecondition, ""));
}

TEST_P(CommunicatorErrorsTest, DifferentOperations) {
  if (world_size() == 1) return;
  Run([](const std::shared_ptr<Communicator>& comm) {
    Tensor x = MakeTensor(8, DType::kFloat32);
    ExpectMismatch(
        comm,
        [&](Stream& s) {
          return comm->AllReduce({&x, 1}, {}, s, "h.0");
        },
        [&](Stream& s) {
          return comm->Broadcast({&x, 1}, 0, s, "h.1");
        },
        {"rank 0 runs AllReduce of 'h.0' (float32, 32 bytes)",
         "rank 1 runs Broadcast of 'h.1'", "ranks_may_differ"});
  });
}

TEST_P(CommunicatorErrorsTest, DifferentUnits) {
  if (world_size() == 1) return;
  Run([](const std::shared_ptr<Communicator>& comm) {
    Tensor x = MakeTensor(80000, DType::kFloat32);
    ExpectMismatch(
        comm,
        [&](Stream& s) {
          return comm->AllReduce({&x, 1}, {}, s, "h.0");
        },
        [&](Stream& s) {
          return comm->AllReduce({&x, 1}, {}, s, "h.1");
        },
        {"'h.0'", "'h.1'", "same units in the same order"});
  });
}

TEST_P(CommunicatorErrorsTest, DifferentSizes) {
  if (world_size() == 1) return;
  Run([](const std::shared_ptr<Communicator>& comm) {
    Tensor x = MakeTensor(comm->rank() == 0 ? 8 : 80000, DType::kFloat32);
    const auto reduce = [&](Stream& s) {
      return comm->AllReduce({&x, 1}, {}, s, "h.0");
    };
    ExpectMismatch(comm, reduce, reduce,
                   {"32 bytes", "320000 bytes", "same model and options"});
  });
}

TEST_P(CommunicatorErrorsTest, DifferentParts) {
  if (world_size() == 1) return;
  Run([](const std::shared_ptr<Communicator>& comm) {
    const int64_t n = comm->rank() == 0 ? 8 : 16;
    const Tensor x[] = {MakeTensor(n, DType::kFloat32),
                        MakeTensor(24 - n, DType::kFloat32)};
    const auto reduce = [&](Stream& s) {
      return comm->AllReduce(x, {}, s, "h.0");
    };
    ExpectMismatch(comm, reduce, reduce, {"sizes of parts"});
  });
}

TEST_P(CommunicatorErrorsTest, LateRankIsWaitedForAndNamed) {
  if (world_size() != 2 && world_size() != 5) return;
  const absl::Time start = absl::Now();
  Run(
      [](const std::shared_ptr<Communicator>& comm) {
        Stream stream = InlineStream();
        Tensor x = MakeTensor(1, DType::kFloat32);
        if (comm->rank() == 1) absl::SleepFor(absl::Milliseconds(100));
        ASSERT_OK(comm->AllReduce({&x, 1}, {}, stream, "in time"));
        if (comm->rank() == 1) absl::SleepFor(absl::Milliseconds(1800));
        const absl::Status status =
            comm->AllReduce({&x, 1}, {}, stream, "norm");
        ASSERT_FALSE(status.ok());
        if (comm->rank() == 0) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                       "AllReduce of 'norm'"));
          EXPECT_THAT(status,
                      StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
        }
      },
      {.timeout = absl::Milliseconds(700),
       .warn_after = absl::Milliseconds(300)});
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_P(CommunicatorErrorsTest, AbortEndsAllWaits) {
  if (world_size() == 1) return;
  const absl::Time start = absl::Now();
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    Tensor x = MakeTensor(100000, DType::kFloat32);
    if (comm->rank() == comm->world_size() - 1) {
      absl::SleepFor(absl::Milliseconds(200));
      comm->Abort(absl::DataLossError("the disk is gone"));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(comm->AllReduce({&x, 1}, {}, stream, "norm"),
                  StatusIs(absl::StatusCode::kDataLoss, "the disk is gone"));
    }
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST_P(CommunicatorErrorsTest, RankThatLeavesEndsWaits) {
  if (world_size() == 1) return;
  const absl::Time start = absl::Now();
  Run([](const std::shared_ptr<Communicator>& comm) {
    if (comm->rank() == 1) return;
    Stream stream = InlineStream();
    Tensor x = MakeTensor(1, DType::kFloat32);
    const absl::Status status = comm->AllReduce({&x, 1}, {}, stream, "norm");
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.ToString().find("rank 1"), std::string::npos) << status;
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

// Queued work that fails on one rank: the collectives behind it are dropped,
// and the other ranks are told at once (HNG-02).
TEST_P(CommunicatorErrorsTest, FailureAtTheNthCallReachesAllRanks) {
  if (world_size() == 1) return;
  const absl::Time start = absl::Now();
  for (int n : {1, 2, 5}) {
    Run([n](const std::shared_ptr<Communicator>& comm) {
      Stream stream(CurrentDevice(), "comm", StreamMode::kQueued);
      Tensor x = MakeTensor(10, DType::kFloat32);
      absl::Status launch;
      for (int i = 1; i <= 6 && launch.ok(); ++i) {
        if (comm->rank() == 1 && i == n) {
          stream.Enqueue("send", [] {
            throw Error(absl::UnavailableError("cable pulled"));
          });
        }
        launch = comm->AllReduce({&x, 1}, {}, stream, "norm");
      }
      absl::Status status = Try([&] { stream.Synchronize(); });
      if (status.ok()) status = launch;
      ASSERT_FALSE(status.ok());
      if (comm->rank() == 1) {
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kUnavailable, "cable pulled"));
      } else {
        EXPECT_NE(status.ToString().find("rank 1"), std::string::npos)
            << status;
      }
    });
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorErrorsTest,
                         testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace tessera
