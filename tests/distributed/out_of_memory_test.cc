// One rank lacks memory in the middle of a step: all ranks lose that step to
// one error, and the next one is that of a run that never failed (HNG-08).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "tests/distributed/memory_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int kSteps = 3;
constexpr int kRankThatFails = 1;

// Whole parameters, as bytes.
std::string Values(FullyShardedModule& sharded) {
  std::string values;
  sharded.ForEachFullParameter([&](const std::string&, const Tensor& whole) {
    const std::vector<float> floats = whole.ToVector<float>();
    values.append(reinterpret_cast<const char*>(floats.data()),
                  floats.size() * sizeof(float));
  });
  return values;
}

// The same error on all ranks, which names the one that failed.
void ExpectOneError(Communicator& world, const absl::Status& common) {
  EXPECT_THAT(common, StatusIs(absl::StatusCode::kResourceExhausted,
                               absl::StrCat("rank ", kRankThatFails)));
  const auto errors = world.AllGatherBytes(common.ToString(), "errors");
  ASSERT_OK(errors);
  for (const std::string& error : *errors) EXPECT_EQ(error, errors->front());
}

// How a step is made to fail on one rank: by its n-th request for memory.
struct Failure {
  int step = 0;
  int64_t request = 0;
};

void TryStep(MemoryRun& run, Communicator& world, const Failure& failure) {
  const bool fails = world.rank() == kRankThatFails;
  Allocator& allocator = AllocatorOf(CurrentDevice());
  if (fails) allocator.FailRequestForTest(failure.request);
  const absl::Time start = absl::Now();
  const absl::Status status = Try([&] { run.Step(); });
  ASSERT_FALSE(status.ok());
  ExpectOneError(world, run.sharded().FailTogether(status));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

std::string Train(const std::shared_ptr<Communicator>& world,
                  const MemoryCase& test,
                  const std::vector<Failure>& failures) {
  const MemoryModel model = TinyGpt2();
  MemoryRun run(model, test, world);
  for (int step = 0; step < kSteps; ++step) {
    for (const Failure& failure : failures) {
      if (failure.step == step) TryStep(run, *world, failure);
    }
    run.Step();
  }
  return Values(run.sharded());
}

// A step asks some hundreds of times; the optimizer's are the last.
const std::vector<Failure> kFailures = {{0, 1},  {0, 30}, {1, 2}, {1, 45},
                                        {1, 75}, {2, 15}, {2, 60}};

void ExpectRecovers(RankKind kind, int world_size, bool shards_in_place) {
  for (const MemoryCase& test :
       MemoryCases(world_size, false, false, shards_in_place)) {
    SCOPED_TRACE(absl::StrCat(RankKindName(kind), " ", test.plan.name));
    RunRanksAs(kind, world_size,
               [&](const std::shared_ptr<Communicator>& comm) {
                 const std::string expected = Train(comm, test, {});
                 EXPECT_EQ(Train(comm, test, kFailures), expected);
               });
  }
}

TEST(OutOfMemoryTest, Threads) {
  ExpectRecovers(RankKind::kThread, 2, true);
  ExpectRecovers(RankKind::kThread, 4, true);
}

TEST(OutOfMemoryTest, SharedMemory) {
  ExpectRecovers(RankKind::kSharedMemory, 2, true);
  ExpectRecovers(RankKind::kSharedMemory, 2, false);
  ExpectRecovers(RankKind::kSharedMemory, 4, true);
}

TEST(OutOfMemoryTest, Gloo) { ExpectRecovers(RankKind::kGloo, 4, false); }

// The user's side of it: a limit that is too low, and then is not.
TEST(OutOfMemoryTest, LimitThatIsRaised) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    const MemoryCase test = MemoryCases(2, false, false, true).front();
    const std::string expected = Train(world, test, {});
    const MemoryModel model = TinyGpt2();
    MemoryRun run(model, test, world);
    run.Step();
    Allocator& allocator = AllocatorOf(CurrentDevice());
    if (world->rank() == kRankThatFails) {
      allocator.ReleaseCache();
      allocator.SetLimit(allocator.stats().reserved_bytes + 4096);
    }
    const absl::Status status = Try([&] { run.Step(); });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "out of memory: wanted"));
    ExpectOneError(*world, run.sharded().FailTogether(status));
    allocator.SetLimit(0);
    run.Step();
    run.Step();
    EXPECT_EQ(Values(run.sharded()), expected);
  });
}

// A rank that fails where others do not wait for it: what they hold may differ.
TEST(OutOfMemoryTest, OutsideOfTheStepEndsTheRun) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    const MemoryCase test = MemoryCases(2, false, false, true).front();
    const MemoryModel model = TinyGpt2();
    MemoryRun run(model, test, world);
    run.Step();
    absl::Status status = absl::ResourceExhaustedError("in the optimizer");
    if (world->rank() != kRankThatFails) status = Try([&] { run.Step(); });
    EXPECT_THAT(run.sharded().FailTogether(status),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "rank 0 is in step 2, rank 1 in 1"));
    EXPECT_THAT(world->AllGatherBytes("", "later").status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, ""));
  });
}

// Whoever calls it for another error ends the run on all ranks.
TEST(OutOfMemoryTest, OtherErrorsEndTheRun) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    const MemoryCase test = MemoryCases(2, false, false, true).front();
    const MemoryModel model = TinyGpt2();
    MemoryRun run(model, test, world);
    absl::Status status = absl::DataLossError("bad batch");
    if (world->rank() != kRankThatFails) status = Try([&] { run.Step(); });
    if (status.ok()) status = Try([&] { run.Step(); });
    EXPECT_THAT(run.sharded().FailTogether(status),
                StatusIs(absl::StatusCode::kDataLoss, "bad batch"));
  });
}

// A rank alone has nobody to tell: it takes the step again. First where it
// still makes its buffers, and later.
TEST(OutOfMemoryTest, OneRankAloneTakesTheStepAgain) {
  const MemoryModel model = TinyGpt2();
  for (const MemoryCase& test :
       MemoryCases(1, /*bfloat16=*/true, false, true)) {
    SCOPED_TRACE(test.plan.name);
    RunRanks(1, [&](const std::shared_ptr<Communicator>& world) {
      Allocator& allocator = AllocatorOf(CurrentDevice());
      MemoryRun undisturbed(model, test, world);
      undisturbed.Step();
      const std::string expected = Values(undisturbed.sharded());
      for (int64_t request = 1; request < 120; request += 3) {
        MemoryRun run(model, test, world);
        allocator.FailRequestForTest(request);
        EXPECT_THAT(Try([&] { run.Step(); }),
                    StatusIs(absl::StatusCode::kResourceExhausted, ""));
        allocator.FailRequestForTest(0);
        run.Step();
        EXPECT_EQ(Values(run.sharded()), expected) << request;
      }
    });
  }
}

}  // namespace
}  // namespace tessera
