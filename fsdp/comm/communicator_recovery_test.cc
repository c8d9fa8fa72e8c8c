// Of the suite for all communicators: a rank that lacks memory ends the step of
// all ranks, and the communicator goes on (HNG-08).
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "gtest/gtest.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"
#include "tests/testing/communicator_conformance.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using CommunicatorRecoveryTest = CommunicatorTest;

const absl::Status kNoMemory = absl::ResourceExhaustedError("no room for 7");

int LastRank(const Communicator& comm) { return comm.world_size() - 1; }

std::string LastRankSays(const Communicator& comm) {
  return absl::StrCat("rank ", LastRank(comm), ": no room for 7");
}

void ExpectWorks(Communicator& comm) {
  Stream stream(CurrentDevice(), "works", StreamMode::kQueued);
  // More than fits in the working memory, where few ranks share the cores.
  const int64_t large = comm.world_size() <= 2 ? 400000 : 20000;
  for (const int64_t n : {int64_t{3}, int64_t{5000}, large}) {
    Tensor whole = MakeTensor(n * comm.world_size(), DType::kFloat32);
    FillValues(whole, comm.rank());
    Tensor shard = MakeTensor(n, DType::kFloat32);
    const ReducePart part{whole, shard};
    ASSERT_OK(comm.ReduceScatter({&part, 1}, {}, {}, stream, "unit"));
    ASSERT_OK(Try([&] { stream.Synchronize(); }));
    ExpectReduced<float, float>(shard, comm.world_size(), n * comm.rank(), {});
    const GatherPart gather{shard, whole};
    ASSERT_OK(comm.AllGather({&gather, 1}, stream, "unit"));
    ASSERT_OK(Try([&] { stream.Synchronize(); }));
    ExpectReduced<float, float>(whole, comm.world_size(), 0, {});
  }
}

// The last rank stops after two collectives; the others have queued more.
absl::Status RunUntilLastRankFails(Communicator& comm, Stream& stream,
                                   int64_t size) {
  Tensor x = MakeTensor(size, DType::kFloat32);
  absl::Status launch;
  for (int i = 0; i < 5 && launch.ok(); ++i) {
    if (comm.rank() == LastRank(comm) && i == 2) break;
    launch = comm.AllReduce({&x, 1}, {}, stream, "norm");
  }
  absl::Status status = Try([&] { stream.Synchronize(); });
  if (status.ok()) status = launch;
  if (comm.rank() != LastRank(comm)) return status;
  EXPECT_OK(status);
  return kNoMemory;
}

TEST_P(CommunicatorRecoveryTest, OneRanksLackOfMemoryIsOneErrorOnAll) {
  const absl::Time start = absl::Now();
  Run([](const std::shared_ptr<Communicator>& comm) {
    for (const StreamMode mode : {StreamMode::kQueued, StreamMode::kInline}) {
      for (const int64_t size : {3, 5000, 100000}) {
        Stream stream(CurrentDevice(), "comm", mode);
        const absl::Status status = RunUntilLastRankFails(*comm, stream, size);
        if (comm->rank() != LastRank(*comm)) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       LastRankSays(*comm)));
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       "AllReduce of 'norm'"));
        }
        EXPECT_EQ(comm->FailTogether(status),
                  absl::ResourceExhaustedError(LastRankSays(*comm)));
        ExpectWorks(*comm);
      }
    }
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

TEST_P(CommunicatorRecoveryTest, AllRanksAtOnce) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(comm->FailTogether(kNoMemory),
                absl::ResourceExhaustedError("rank 0: no room for 7"));
    }
    ExpectWorks(*comm);
  });
}

// What one stream has dropped ends what another waits for its turn with.
TEST_P(CommunicatorRecoveryTest, StreamThatLackedMemory) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream first(CurrentDevice(), "first", StreamMode::kQueued);
    Stream second(CurrentDevice(), "second", StreamMode::kQueued);
    Tensor x = MakeTensor(1000, DType::kFloat32);
    Tensor y = MakeTensor(1000, DType::kFloat32);
    if (comm->rank() == LastRank(*comm)) {
      first.Enqueue("Gelu", [] {
        absl::SleepFor(absl::Milliseconds(20));
        throw Error(kNoMemory);
      });
    }
    (void)comm->AllReduce({&x, 1}, {}, first, "h.0");
    (void)comm->AllReduce({&y, 1}, {}, second, "h.1");
    const absl::Status first_status = Try([&] { first.Synchronize(); });
    const absl::Status second_status = Try([&] { second.Synchronize(); });
    EXPECT_THAT(first_status,
                StatusIs(absl::StatusCode::kResourceExhausted, "room for 7"));
    // It may not have been queued any more.
    if (!second_status.ok()) {
      EXPECT_THAT(second_status,
                  StatusIs(absl::StatusCode::kResourceExhausted, "room for 7"));
    }
    EXPECT_THAT(comm->FailTogether(first_status),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         absl::StrCat("rank ", LastRank(*comm), ": ")));
    ExpectWorks(*comm);
  });
}

TEST_P(CommunicatorRecoveryTest, WhileOthersAllocate) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    absl::Status status = kNoMemory;
    if (comm->rank() != LastRank(*comm)) {
      status =
          comm->AllocateBuffer(CurrentDevice(), 1000, CommBufferKind::kCommon,
                               MemoryCategory::kUnsharded)
              .status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   LastRankSays(*comm)));
    }
    EXPECT_EQ(comm->FailTogether(status),
              absl::ResourceExhaustedError(LastRankSays(*comm)));
    EXPECT_OK(comm->AllocateBuffer(CurrentDevice(), 1000,
                                   CommBufferKind::kCommon,
                                   MemoryCategory::kUnsharded));
    ExpectWorks(*comm);
  });
}

// The working memory of a collective itself; the allocator refuses its n-th
// request. Ranks that share memory need none.
TEST_P(CommunicatorRecoveryTest, WorkingMemoryOfACollective) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    if (std::string(comm->name()) != "gloo") return;
    Tensor whole = MakeTensor(5000 * comm->world_size(), DType::kFloat32);
    Tensor shard = MakeTensor(5000, DType::kFloat32);
    const ReducePart part{whole, shard};
    Stream stream = InlineStream();
    for (const bool scatter : {true, false}) {
      if (comm->rank() == LastRank(*comm)) {
        AllocatorOf(CurrentDevice()).FailRequestForTest(1);
      }
      const absl::Status status =
          scatter ? comm->ReduceScatter({&part, 1}, {}, {}, stream, "h.3")
                  : comm->AllReduce({&whole, 1}, {}, stream, "h.3");
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   absl::StrCat("rank ", LastRank(*comm))));
      EXPECT_THAT(comm->FailTogether(status),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           absl::StrCat("rank ", LastRank(*comm))));
      ExpectWorks(*comm);
    }
  });
}

TEST_P(CommunicatorRecoveryTest, OtherErrorsEndTheRun) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    Tensor x = MakeTensor(3, DType::kFloat32);
    if (comm->rank() == LastRank(*comm)) {
      EXPECT_THAT(comm->FailTogether(absl::DataLossError("the disk is gone")),
                  StatusIs(absl::StatusCode::kDataLoss, "the disk is gone"));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(comm->AllReduce({&x, 1}, {}, stream, "norm"),
                  StatusIs(absl::StatusCode::kDataLoss, "the disk is gone"));
    }
    EXPECT_THAT(comm->FailTogether(kNoMemory),
                StatusIs(absl::StatusCode::kDataLoss, "the disk is gone"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorRecoveryTest,
                         testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace tessera
