// Training within a limit that the allocator enforces on each rank, and what
// happens when it is too low.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "tests/distributed/memory_formula.h"
#include "tests/distributed/memory_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int kRanks = 8;
constexpr int kNumLayers = 24;
constexpr int64_t kWidth = 192;
constexpr int kSteps = 10;

// From construction to the tenth step on all ranks, each of which may take
// `limit` bytes. The ranks' results.
std::vector<absl::Status> TrainWithin(int64_t limit, const MemoryCase& test) {
  const MemoryModel model = EqualLayers(kNumLayers, kWidth);
  std::vector<absl::Status> results(kRanks);
  RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    Allocator& allocator = AllocatorOf(CurrentDevice());
    allocator.ReleaseCache();
    allocator.SetLimit(limit);
    const absl::Status status = Try([&] {
      MemoryRun run(model, test, world);
      for (int step = 0; step < kSteps; ++step) run.Step();
    });
    if (!status.ok()) world->Abort(status);
    results[world->rank()] = status;
    allocator.SetLimit(0);
    allocator.ReleaseCache();
  });
  return results;
}

void ExpectRuns(const std::vector<absl::Status>& results) {
  for (const absl::Status& status : results) EXPECT_OK(status);
}

// 16 bytes a parameter is what a rank would hold of an unsharded model: its
// value, its gradient and two moments.
TEST(MemoryLimitTest, AModelFourTimesTheLimitTrains) {
  const int64_t state = 16 * kNumLayers * kWidth * kWidth;
  for (const MemoryCase& test : MemoryCases(kRanks, false, false, true)) {
    if (test.plan.keeping != Keeping::kReshards) continue;
    if (test.plan.copies > 1) continue;
    SCOPED_TRACE(test.plan.name);
    ExpectRuns(TrainWithin(state / 4, test));
  }
}

TEST(MemoryLimitTest, TheFormulaIsEnoughAndLessIsAnErrorOnAllRanks) {
  const ModelShapes shapes = EqualLayers(kNumLayers, kWidth).shapes;
  for (const MemoryCase& test : MemoryCases(kRanks, false, false, true)) {
    if (test.plan.keeping == Keeping::kNeverSharded) continue;
    SCOPED_TRACE(test.plan.name);
    const int64_t formula = MemoryFormula(shapes, test.plan, 0).Total();
    ExpectRuns(TrainWithin(formula + formula / 20, test));
    for (const absl::Status& status :
         TrainWithin(formula - formula / 20, test)) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   "out of memory: wanted"));
    }
  }
}

}  // namespace
}  // namespace tessera
