// Cases of memory and of start values, as users have met them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/memory_formula.h"
#include "tests/distributed/memory_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int kRanks = 4;
using World = std::shared_ptr<Communicator>;

// Runs `f` on all ranks with every strategy, in float32.
template <typename F>
void ForEachStrategy(const F& f) {
  for (const MemoryCase& test : MemoryCases(kRanks, false, false, false)) {
    SCOPED_TRACE(test.plan.name);
    RunRanks(kRanks, [&](const World& world) { f(test, world); });
  }
}

// MEM-02: the shards' gradients, and whole ones of at most two layers.
TEST(MemoryCases, Mem02WholeGradientsGoAsBackwardGoes) {
  constexpr int64_t kLayers = 16;
  constexpr int64_t kLayerBytes = 32 * 32 * 4;
  const MemoryModel model = EqualLayers(kLayers, 32);
  ForEachStrategy([&](const MemoryCase& test, const World& world) {
    MemoryRun run(model, test, world);
    AllocatorOf(CurrentDevice()).ResetPeak();
    for (int step = 0; step < 3; ++step) run.Step();
    const MemoryStats stats = StatsNow();
    EXPECT_LE(stats.peak(MemoryCategory::kGradient) +
                  stats.peak(MemoryCategory::kUnshardedGradient),
              kLayers * kLayerBytes / test.plan.shard_ranks + 2 * kLayerBytes);
  });
}

// MEM-04: on a grid, with bfloat16 weights and float32 reductions.
TEST(MemoryCases, Mem04BuffersDoNotGrowWithLayers) {
  for (MemoryCase test : MemoryCases(kRanks, true, false, false)) {
    if (test.plan.copies == 1 || test.plan.shard_ranks == 1) continue;
    test.options.mixed_precision.reduce_dtype = DType::kFloat32;
    RunRanks(kRanks, [&](const World& world) {
      int64_t expected = 0;
      for (const int num_layers : {8, 64}) {
        MemoryModel model = EqualLayers(num_layers, 16);
        MemoryRun run(model, test, world);
        for (int step = 0; step < 3; ++step) run.Step();
        const MemoryStats stats = StatsNow();
        const int64_t buffers =
            stats.current(MemoryCategory::kUnsharded) +
            stats.current(MemoryCategory::kUnshardedGradient) +
            stats.current(MemoryCategory::kScratch);
        if (num_layers == 8) expected = buffers;
        EXPECT_GT(buffers, 0);
        EXPECT_EQ(buffers, expected) << test.plan.name;
      }
    });
  }
}

// MEM-05: after a forward without gradients parameters are sharded, and there
// is the shards' memory and that of one unit's buffer, which is kept for the
// next forward, or released when asked.
TEST(MemoryCases, Mem05EvaluationLeavesShards) {
  constexpr int64_t kLayerBytes = 32 * 32 * 4;
  const MemoryModel model = EqualLayers(16, 32);
  ForEachStrategy([&](const MemoryCase& test, const World& world) {
    MemoryRun run(model, test, world);
    const bool whole = test.plan.keeping == Keeping::kNeverSharded;
    for (int i = 0; i < 2; ++i) {
      {
        const NoGrad no_grad;
        (void)model.loss(run.module(), world->rank(), i);
      }
      EXPECT_EQ(
          StatsNow().current_bytes,
          16 * kLayerBytes / test.plan.shard_ranks + (whole ? 0 : kLayerBytes));
      EXPECT_EQ(OrThrow(run.sharded().StateOf("l3.weight")),
                UnitState::kSharded);
      run.sharded().ReleaseBuffers();
      EXPECT_EQ(StatsNow().current_bytes,
                16 * kLayerBytes / test.plan.shard_ranks);
      EXPECT_EQ(StatsNow().reserved_bytes, StatsNow().current_bytes);
    }
  });
}

// Buffers that were released in the middle of training change nothing.
TEST(MemoryCases, Mem05TrainingGoesOnAfterBuffersWereReleased) {
  const MemoryModel model = TinyGpt2();
  ForEachStrategy([&](const MemoryCase& test, const World& world) {
    MemoryRun released(model, test, world);
    MemoryRun undisturbed(model, test, world);
    for (int step = 0; step < 3; ++step) {
      released.Step();
      released.sharded().ReleaseBuffers();
      undisturbed.Step();
    }
    std::vector<std::vector<float>> expected;
    undisturbed.sharded().ForEachFullParameter(
        [&](const std::string&, const Tensor& whole) {
          expected.push_back(whole.ToVector<float>());
        });
    size_t at = 0;
    released.sharded().ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          EXPECT_EQ(whole.ToVector<float>(), expected[at++]) << name;
        });
  });
}

// Where ranks see one memory and shards lie in it, there is nothing else.
TEST(MemoryCases, Mem05EvaluationInPlaceTakesShardsAlone) {
  const MemoryModel model = EqualLayers(16, 32);
  RunRankProcesses(RankKind::kSharedMemory, 2, [&](const World& world) {
    for (const MemoryCase& test : MemoryCases(2, false, true, true)) {
      MemoryRun run(model, test, world);
      {
        const NoGrad no_grad;
        (void)model.loss(run.module(), world->rank(), 0);
      }
      EXPECT_EQ(StatsNow().current_bytes,
                16 * 32 * 32 * 4 / test.plan.shard_ranks)
          << test.plan.name;
    }
  });
}

constexpr int64_t kTableRows = 640;

MemoryModel LargeTables() {
  MemoryModel model = TinyLlama();
  model.make = [] {
    return std::make_shared<LlamaForCausalLM>(SmallLlama(kTableRows));
  };
  for (const int table : {0, 4}) {
    model.shapes.units[table].parameters = {{kTableRows, 24}};
  }
  return model;
}

// MEM-06: tables of most bytes are units by default: no table is gathered
// while layers run, and one buffer serves both. A layer that is gathered ahead
// is the second one.
TEST(MemoryCases, Mem06TablesAreNotGatheredWhileLayersRun) {
  constexpr int64_t kTableBytes = kTableRows * 24 * 4;
  constexpr int64_t kLayerBytes = 5328 * 4;  // With gaps before parameters.
  const MemoryModel model = LargeTables();
  for (MemoryCase test : MemoryCases(kRanks, false, false, false)) {
    if (test.plan.keeping != Keeping::kReshards || test.plan.copies > 1) {
      continue;
    }
    for (const bool prefetch : {false, true}) {
      test.options.backward_prefetch =
          prefetch ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
      RunRanks(kRanks, [&](const World& world) {
        MemoryRun run(model, test, world);
        int seen = 0;
        for (const NamedModule& m : run.module().NamedModules()) {
          if (m.name != "model.layers.1") continue;
          m.module->AddPreForwardHook(
              [&](Module&, const std::vector<Variable*>&) {
                ++seen;
                for (const char* table :
                     {"model.embed_tokens.weight", "lm_head.weight"}) {
                  EXPECT_EQ(OrThrow(run.sharded().StateOf(table)),
                            UnitState::kSharded);
                }
              });
        }
        AllocatorOf(CurrentDevice()).ResetPeak();
        for (int step = 0; step < 3; ++step) run.Step();
        EXPECT_EQ(seen, 3);
        const int64_t norm_and_padding = 1024;
        EXPECT_LE(
            StatsNow().peak(MemoryCategory::kUnsharded),
            kTableBytes + (prefetch ? 2 : 1) * kLayerBytes + norm_and_padding)
            << test.plan.name;
      });
    }
  }
}

// MEM-07: 16 layers and no policy.
TEST(MemoryCases, Mem07WithoutAPolicyThereAreUnitsOrAWarning) {
  constexpr int64_t kLayerBytes = 32 * 32 * 4;
  const MemoryModel model = EqualLayers(16, 32);
  for (MemoryCase test : MemoryCases(kRanks, false, false, false)) {
    if (test.plan.keeping != Keeping::kReshards) continue;
    for (const bool policy : {false, true}) {
      if (policy) test.options.auto_wrap_policy = WrapNothing();
      RunRanks(kRanks, [&](const World& world) {
        MemoryRun run(model, test, world);
        AllocatorOf(CurrentDevice()).ResetPeak();
        run.Step();
        if (policy) {
          ASSERT_EQ(run.sharded().warnings().size(), 1u);
          EXPECT_NE(run.sharded().warnings()[0].find(
                        absl::StrCat(16 * kLayerBytes, " bytes")),
                    std::string::npos);
        } else {
          EXPECT_LE(StatsNow().peak(MemoryCategory::kUnsharded),
                    2 * kLayerBytes);
        }
      });
    }
  }
}

constexpr int64_t kMiB = 1 << 20;
constexpr int kBigLayers = 32;  // Of 4 MiB.

// Made without memory, then sharded; the peak of that.
std::unique_ptr<MemoryRun> ShardDeferred(const MemoryModel& model,
                                         MemoryCase test, const World& world) {
  test.options.param_init_fn = [](Module& module,
                                  const Initializer& initializer) {
    for (const NamedVariable& p : module.own_parameters()) {
      initializer.Constant(p.variable, 0.5);
    }
  };
  AllocatorOf(CurrentDevice()).ReleaseCache();
  AllocatorOf(CurrentDevice()).ResetPeak();
  return std::make_unique<MemoryRun>(model, test, world);
}

// INIT-01: 128 MiB of parameters; a rank holds its shards and one unit.
TEST(MemoryCases, Init01SetUpHoldsShardsAndOneUnit) {
  const MemoryModel model = EqualLayers(kBigLayers, 1024);
  for (const MemoryCase& test : MemoryCases(kRanks, false, false, false)) {
    if (test.plan.shard_ranks < kRanks) continue;
    if (test.plan.keeping != Keeping::kReshards) continue;
    RunRanks(kRanks, [&](const World& world) {
      const auto run = ShardDeferred(model, test, world);
      EXPECT_LT(StatsNow().peak_bytes, (32 + 2 * 4) * kMiB) << test.plan.name;
      EXPECT_EQ(StatsNow().current_bytes, 32 * kMiB) << test.plan.name;
    });
  }
}

// INIT-02: rank 0 hands out values that it alone makes, tensor by tensor.
TEST(MemoryCases, Init02RankZeroHandsOutOneTensorAtATime) {
  const MemoryModel model = EqualLayers(kBigLayers, 1024);
  for (const MemoryCase& strategy : MemoryCases(kRanks, false, false, false)) {
    if (strategy.plan.shard_ranks < kRanks) continue;
    if (strategy.plan.keeping != Keeping::kReshards) continue;
    RunRanks(kRanks, [&](const World& world) {
      MemoryCase test = strategy;
      test.options.sync_module_states = true;
      double value = 0;
      test.options.param_init_fn = [&](Module& module,
                                       const Initializer& init) {
        EXPECT_EQ(world->rank(), 0);
        for (const NamedVariable& p : module.own_parameters()) {
          init.Constant(p.variable, ++value);
        }
      };
      AllocatorOf(CurrentDevice()).ReleaseCache();
      AllocatorOf(CurrentDevice()).ResetPeak();
      MemoryRun run(model, test, world);
      EXPECT_LE(StatsNow().peak_bytes, 32 * kMiB + 2 * 4 * kMiB);
      double expected = 0;
      for (const ShardedParameter& p : run.sharded().Parameters()) {
        const Tensor& mine = p.variable.data();
        EXPECT_EQ(mine.Flatten().Narrow(0, mine.num_elements() - 1, 1).Item(),
                  ++expected);
      }
    });
  }
}

}  // namespace
}  // namespace tessera
