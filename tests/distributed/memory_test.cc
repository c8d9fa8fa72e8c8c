// Every byte that training holds is one that a formula of shapes, ranks and
// strategy asks for.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/device/allocator.h"
#include "tests/distributed/memory_formula.h"
#include "tests/distributed/memory_run.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

void ExpectFormula(const MemoryStats& stats, const MemoryBytes& expected) {
  EXPECT_EQ(stats.peak(MemoryCategory::kParameter), expected.parameters);
  EXPECT_EQ(stats.peak(MemoryCategory::kGradient), expected.gradients);
  EXPECT_EQ(stats.peak(MemoryCategory::kOptimizerState),
            expected.optimizer_state);
  EXPECT_EQ(stats.peak(MemoryCategory::kUnsharded), expected.unsharded);
  EXPECT_EQ(stats.peak(MemoryCategory::kUnshardedGradient),
            expected.unsharded_gradients);
  EXPECT_EQ(stats.current(MemoryCategory::kScratch), expected.buffers);
  EXPECT_EQ(stats.current(MemoryCategory::kActivation), 0);
}

// Tiles and packed panels of one thread's kernels.
constexpr int64_t kKernelScratch = int64_t{64} << 10;

// `narrow`: activations of bfloat16, but for what is as small as the batch.
void ExpectBounds(const MemoryStats& stats, const MemoryModel& model,
                  const MemoryBytes& expected, bool narrow) {
  EXPECT_LE(stats.peak(MemoryCategory::kActivation),
            narrow ? model.activation_bound / 2 + 512 : model.activation_bound);
  EXPECT_LE(stats.peak(MemoryCategory::kScratch),
            expected.buffers + kKernelScratch);
  EXPECT_EQ(stats.peak(MemoryCategory::kData), model.data_bytes);
}

void CheckCase(const MemoryModel& model, const MemoryCase& test,
               const std::shared_ptr<Communicator>& world) {
  Allocator& allocator = AllocatorOf(CurrentDevice());
  {
    MemoryRun run(model, test, world);
    allocator.ResetPeak();
    run.Step();
    run.Step();
    const MemoryBytes expected =
        MemoryFormula(model.shapes, test.plan, run.shard_rank());
    ExpectFormula(StatsNow(), expected);
    ExpectBounds(StatsNow(), model, expected, test.plan.compute_bytes < 4);
  }
  allocator.ReleaseCache();
  EXPECT_EQ(StatsNow().current(MemoryCategory::kParameter), 0);
}

void CheckAllCases(const MemoryModel& model,
                   const std::shared_ptr<Communicator>& world,
                   bool one_memory) {
  for (const bool bfloat16 : {false, true}) {
    for (const bool in_place : {true, false}) {
      if (in_place && !one_memory) continue;  // Asks for nothing else.
      for (const MemoryCase& test :
           MemoryCases(world->world_size(), bfloat16, one_memory, in_place)) {
        SCOPED_TRACE(absl::StrCat(
            model.name, ", ", test.plan.name, ", rank ", world->rank(), " of ",
            world->world_size(), bfloat16 ? ", bfloat16" : ", float32",
            one_memory ? ", one memory" : "", in_place ? ", in place" : ""));
        CheckCase(model, test, world);
      }
    }
  }
}

// MEM-08: also what is kept after resharding in part.
void CheckModel(const MemoryModel& model) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    RunRanks(world_size, [&](const std::shared_ptr<Communicator>& world) {
      CheckAllCases(model, world, /*one_memory=*/false);
    });
    RunRankProcesses(RankKind::kSharedMemory, world_size,
                     [&](const std::shared_ptr<Communicator>& world) {
                       CheckAllCases(model, world, /*one_memory=*/true);
                     });
  }
}

TEST(MemoryTest, Gpt2TakesWhatTheFormulaSays) { CheckModel(TinyGpt2()); }
TEST(MemoryTest, LlamaTakesWhatTheFormulaSays) { CheckModel(TinyLlama()); }
TEST(MemoryTest, UnevenModelTakesWhatTheFormulaSays) {
  CheckModel(UnevenModel());
}

// One slot a unit without the limiter; without prefetch one fewer.
TEST(MemoryTest, LimiterAndPrefetchSetTheNumberOfSlots) {
  const MemoryModel model = TinyLlama();
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    for (MemoryCase test : MemoryCases(2, false, false, false)) {
      SCOPED_TRACE(test.plan.name);
      test.options.limit_all_gathers = false;
      test.plan.one_slot_a_unit = true;
      CheckCase(model, test, world);
      test.options.limit_all_gathers = true;
      test.plan.one_slot_a_unit = false;
      test.options.backward_prefetch = BackwardPrefetch::kNone;
      test.plan.prefetch = false;
      CheckCase(model, test, world);
    }
  });
}

}  // namespace
}  // namespace tessera
