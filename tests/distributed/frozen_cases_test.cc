// Parameters that are frozen, unused, or used on some ranks only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/device/allocator.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

// y = x base^T + (x a^T) b^T, base frozen.
std::shared_ptr<CaseModule> MakeAdapted(int64_t width, int64_t rank) {
  auto layer = std::make_shared<CaseModule>("Adapted");
  Variable base = layer->AddParameter("base", {width, width});
  base.set_requires_grad(false);
  const Variable a = layer->AddParameter("a", {rank, width});
  const Variable b = layer->AddParameter("b", {width, rank});
  layer->body = [base, a, b](const Variable& x) {
    const Variable low = functions::Linear(x, a, Variable());
    return functions::Add(functions::Linear(x, base, Variable()),
                          functions::Linear(low, b, Variable()));
  };
  return layer;
}

Scenario SquaredOutput(int64_t columns,
                       std::function<std::shared_ptr<Module>()> make_model) {
  return {
      .make_model = std::move(make_model),
      .train =
          [columns](Module& model, Pass& pass) {
            const Variable x = CaseInput(2, columns, pass.rank(), pass.step());
            pass.Backward(functions::Scale(SumOfSquares(Case(model)(x)), 0.01));
          },
      .learning_rate = 0.01};
}

TEST(FrozenCases, Frz01FrozenAndTrainedInOneUnit) {
  const Scenario scenario =
      SquaredOutput(16, [] { return MakeAdapted(16, 3); });
  ExpectOracle(scenario, {2, 3});
}

TEST(FrozenCases, Frz01FrozenPartTakesNoGradientMemory) {
  Scenario scenario = SquaredOutput(256, [] { return MakeAdapted(256, 4); });
  scenario.num_steps = 2;
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunSharded(scenario, 2, mode, [&](Module&, FullyShardedModule&) {
      const MemoryStats stats = AllocatorOf(CurrentDevice()).stats();
      const int64_t gradients = stats.peak(MemoryCategory::kGradient) +
                                stats.peak(MemoryCategory::kUnshardedGradient);
      // The adapters whole and sharded are 12 KiB; the base would be 256 KiB.
      EXPECT_LT(gradients, 32 * 1024) << mode.name;
      EXPECT_GT(gradients, 0) << mode.name;
    });
  }
}

std::shared_ptr<CaseModule> MakeStack(int num_layers, int64_t width) {
  auto model = std::make_shared<CaseModule>("Stack");
  std::vector<std::shared_ptr<CaseModule>> layers;
  for (int i = 0; i < num_layers; ++i) {
    layers.push_back(
        model->AddChild(absl::StrCat("l", i), MakeLinear(width, width)));
  }
  model->body = [layers](const Variable& x) {
    Variable y = x;
    for (const auto& layer : layers) {
      y = functions::Gelu((*layer)(y), functions::GeluKind::kTanh);
    }
    return y;
  };
  return model;
}

// J.46. Some layers are frozen, at the end and in the middle.
TEST(FrozenCases, Frz02FrozenUnitsAreReleasedInBackward) {
  const Scenario scenario = SquaredOutput(6, [] {
    auto model = MakeStack(5, 6);
    for (const NamedModule& child : model->Children()) {
      if (child.name == "l1" || child.name == "l2" || child.name == "l4") {
        child.module->RequiresGrad(false);
      }
    }
    return model;
  });
  ExpectOracle(scenario, {2, 3});
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunSharded(scenario, 2, mode, [&](Module&, FullyShardedModule& sharded) {
      ExpectNothingGathered(sharded);
    });
  }
}

// 16 layers of 256 KiB, whose bases are frozen: whatever backward needs at
// once, it is no more than the shards and three layers.
TEST(FrozenCases, Frz02BackwardHoldsShardsAndThreeLayers) {
  constexpr int64_t kWidth = 256;
  constexpr int64_t kLayerBytes = (kWidth * kWidth + 2 * 2 * kWidth) * 4;
  constexpr int kLayers = 16;
  Scenario scenario;
  scenario.learning_rate = 0;
  scenario.make_model = [] {
    auto model = std::make_shared<CaseModule>("Adapted stack");
    std::vector<std::shared_ptr<CaseModule>> layers;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          model->AddChild(absl::StrCat("l", i), MakeAdapted(kWidth, 2)));
    }
    model->body = [layers](const Variable& x) {
      Variable y = x;
      for (const auto& layer : layers) {
        y = functions::Scale((*layer)(y), 0.01);
      }
      return y;
    };
    return model;
  };
  scenario.train = [](Module& model, Pass& pass) {
    const Variable x = CaseInput(1, kWidth, pass.rank(), pass.step());
    const Variable loss = SumOfSquares(Case(model)(x));
    AllocatorOf(CurrentDevice()).ResetPeak();
    pass.Backward(loss);
  };
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kNone, BackwardPrefetch::kPre,
        BackwardPrefetch::kPost}) {
    for (Mode mode : {FullShard(), PerParameter()}) {
      mode.options.backward_prefetch = prefetch;
      SCOPED_TRACE(
          absl::StrCat(mode.name, " ", BackwardPrefetchName(prefetch)));
      RunSharded(scenario, 2, mode, [&](Module&, FullyShardedModule&) {
        const MemoryStats stats = AllocatorOf(CurrentDevice()).stats();
        EXPECT_LE(stats.peak_bytes,
                  kLayers * kLayerBytes / 2 + 3 * kLayerBytes);
        EXPECT_GT(stats.peak_bytes, kLayers * kLayerBytes / 2 + kLayerBytes);
      });
    }
  }
}

TEST(FrozenCases, Frz07UnusedInputThatWantsAGradient) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Model");
            auto first = model->AddChild("first", MakeLinear(3, 3));
            auto frozen = model->AddChild("frozen", MakeLinear(3, 3));
            auto aside = model->AddChild("aside", MakeLinear(3, 3));
            frozen->RequiresGrad(false);
            model->body = [first, frozen, aside](const Variable& x) {
              const Variable z = (*aside)(x);  // Goes nowhere.
              return (*frozen)((*first)(x));
            };
            return model;
          },
      .train = SquaredOutput(3, nullptr).train};
  ExpectOracle(scenario, {2});
}

TEST(FrozenCases, Frz08UnitsThatAreSkippedInTurn) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("Skipping");
    std::vector<std::shared_ptr<CaseModule>> layers;
    for (int i = 0; i < 3; ++i) {
      layers.push_back(model->AddChild(absl::StrCat("l", i), MakeLinear(4, 4)));
    }
    auto step = std::make_shared<int>(0);
    model->body = [layers, step](const Variable& x) {
      const int skipped = (*step)++ % 3;
      Variable y = x;
      for (int i = 0; i < 3; ++i) {
        if (i != skipped) y = (*layers[i])(y);
      }
      return y;
    };
    return model;
  };
  Scenario scenario = SquaredOutput(4, make_model);
  scenario.num_steps = 4;
  // The oracle plays the ranks in turn on one model, so there the counter
  // has to go on once a step.
  Scenario oracle = scenario;
  oracle.make_model = [] {
    auto model = std::make_shared<CaseModule>("Skipping");
    std::vector<std::shared_ptr<CaseModule>> layers;
    for (int i = 0; i < 3; ++i) {
      layers.push_back(model->AddChild(absl::StrCat("l", i), MakeLinear(4, 4)));
    }
    auto calls = std::make_shared<int>(0);
    model->body = [layers, calls](const Variable& x) {
      const int skipped = (*calls)++ / 2 % 3;
      Variable y = x;
      for (int i = 0; i < 3; ++i) {
        if (i != skipped) y = (*layers[i])(y);
      }
      return y;
    };
    return model;
  };
  const Outcome expected = RunOracle(oracle, 2);
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    ExpectSame(RunSharded(scenario, 2, mode,
                          [&](Module&, FullyShardedModule& sharded) {
                            ExpectNothingGathered(sharded);
                          }),
               expected, 1e-5);
  }
}

TEST(FrozenCases, Use03IgnoredParametersAreReducedAllTheSame) {
  Scenario scenario = SquaredOutput(3, [] { return MakeMlp({3, 4, 2}); });
  scenario.num_steps = 3;
  const Outcome expected = RunOracle(scenario, 3);
  for (Mode mode : AllModes(3)) {
    SCOPED_TRACE(mode.name);
    mode.options.ignored_patterns = {".*\\.bias"};
    ExpectSame(RunSharded(scenario, 3, mode,
                          [](Module& model, FullyShardedModule&) {
                            for (const auto& p : model.NamedParameters()) {
                              if (p.name == "0.bias") {
                                EXPECT_EQ(p.variable.shape(), Shape{4});
                              }
                            }
                          }),
               expected, 1e-5);
  }
}

// What was averaged is not averaged again: a divisor that is not the number of
// ranks shows it, and one rank.
TEST(FrozenCases, Use03EveryContributionIsDividedOnce) {
  Scenario scenario = SquaredOutput(3, [] { return MakeMlp({3, 4, 2}); });
  scenario.learning_rate = 0.002;
  scenario.train = [](Module& model, Pass& pass) {
    for (int part = 0; part < 3; ++part) {
      pass.Backward(SumOfSquares(
          Case(model)(CaseInput(2, 3, pass.rank(), 3 * pass.step() + part))));
    }
  };
  const auto accumulate = [&](Module& model, FullyShardedModule& sharded) {
    Pass pass(sharded.mesh().world()->rank(), 7, 1.0);
    scenario.train(model, pass);
    {
      const auto no_sync = sharded.NoSync();
      scenario.train(model, pass);
    }
    scenario.train(model, pass);
  };
  for (const int world_size : {1, 3}) {
    for (Mode mode : AllModes(world_size)) {
      SCOPED_TRACE(absl::StrCat(world_size, " ", mode.name));
      mode.options.gradient_divisor = 2.0;
      const Outcome expected =
          RunSharded(scenario, world_size, mode, accumulate);
      mode.options.ignored_patterns = {".*\\.bias"};
      const Outcome actual = RunSharded(scenario, world_size, mode, accumulate);
      ExpectSame(actual, expected, 1e-5);
      for (const auto& [name, values] : expected.gradients) {
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_NEAR(actual.gradients.at(name)[i], values[i],
                      1e-4 * std::abs(values[i]))
              << name;
        }
      }
    }
  }
}

// With weight decay, which moves even what has a gradient of zero.
void ExpectAdamWLeavesUnusedAlone(Module& model) {
  ParameterGroup group{{}, {.lr = 0.1, .weight_decay = 0.1}};
  std::map<std::string, std::vector<double>> before;
  for (const NamedVariable& p : model.NamedParameters()) {
    group.parameters.push_back({p.name, p.variable});
    before[p.name] = p.variable.data().ToDoubles();
  }
  AdamW optimizer({group});
  optimizer.Step();
  for (const NamedVariable& p : model.NamedParameters()) {
    if (before[p.name].empty()) continue;
    EXPECT_EQ(p.variable.data().ToDoubles() != before[p.name],
              p.name != "unused")
        << p.name;
  }
  for (const auto& state : optimizer.NamedState()) {
    if (state.state == "step") continue;
    EXPECT_NE(state.parameter, "unused") << state.state;
  }
}

// Unused everywhere: no gradient. Used on one of two ranks: updated on both.
TEST(FrozenCases, Use04AbsentOnAllRanksIsNotTouched) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Model");
            const Variable used = model->AddParameter("used", {4});
            model->AddParameter("unused", {4});
            const Variable once = model->AddParameter("once", {4});
            model->body = [used, once](const Variable& x) {
              const Variable y = functions::Mul(x, used);
              return x.size(0) == 2 ? functions::Mul(y, once) : y;
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x =
                CaseInput(1 + pass.rank(), 4, pass.rank(), pass.step());
            pass.Backward(SumOf(Case(model)(x)));
          },
      .num_steps = 1};
  ExpectOracle(scenario, {2});
  for (const Mode& mode : AllModes(2)) {
    RunSharded(scenario, 2, mode, [&](Module& model, FullyShardedModule&) {
      for (const NamedVariable& p : model.NamedParameters()) {
        if (p.name == "unused") {
          EXPECT_FALSE(p.variable.grad().defined()) << mode.name;
        } else if (p.variable.shape().num_elements() > 0) {
          EXPECT_TRUE(p.variable.grad().defined()) << mode.name << p.name;
        }
      }
      ExpectAdamWLeavesUnusedAlone(model);
    });
  }
}

}  // namespace
}  // namespace tessera
