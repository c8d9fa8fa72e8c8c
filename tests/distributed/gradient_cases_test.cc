// The values of gradients: divisors, calls, order, timing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/device/allocator.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

Variable Curve(const Variable& x) {
  return functions::Gelu(x, functions::GeluKind::kTanh);
}

Scenario MlpScenario() {
  return {.make_model =
              [] {
                return MakeMlp({4, 6, 5, 2});
              },
          .train =
              [](Module& model, Pass& pass) {
                const Variable x = CaseInput(3, 4, pass.rank(), pass.step());
                pass.Backward(SumOfSquares(Case(model)(x)));
              }};
}

// J.50, J.51
TEST(GradientCases, EveryStrategyEqualsOneProcess) {
  Scenario scenario = MlpScenario();
  scenario.num_steps = 4;
  ExpectOracle(scenario, {1, 2, 3, 4, 5, 8});
}

TEST(GradientCases, Grd06DivisorIsKnownAndCanBeSet) {
  Scenario scenario = MlpScenario();
  scenario.num_steps = 1;
  const Outcome mean = RunOracle(scenario, 4);
  for (Mode mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    RunSharded(scenario, 4, mode, [](Module&, FullyShardedModule& sharded) {
      EXPECT_EQ(sharded.gradient_divisor(), 4.0);
    });
    mode.options.gradient_divisor = 1.0;
    const Outcome sum =
        RunSharded(scenario, 4, mode, [](Module&, FullyShardedModule& sharded) {
          EXPECT_EQ(sharded.gradient_divisor(), 1.0);
        });
    for (const auto& [name, expected] : mean.gradients) {
      const std::vector<double>& actual = sum.gradients.at(name);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(actual[i], 4 * expected[i], 1e-4) << name;
      }
    }
  }
}

TEST(GradientCases, Grd06DivisorIsSetBetweenStepsAndChecked) {
  Scenario scenario = MlpScenario();
  scenario.num_steps = 1;
  const Mode mode = PerParameter();
  RunSharded(
      scenario, 2, mode, [&](Module& model, FullyShardedModule& sharded) {
        const auto norm_with = [&](double divisor) {
          sharded.set_gradient_divisor(divisor);
          EXPECT_EQ(sharded.gradient_divisor(), divisor);
          sharded.ZeroGrad();
          Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
          scenario.train(model, pass);
          return sharded.GradNorm();
        };
        const double whole = norm_with(1.0);
        EXPECT_NEAR(norm_with(0.5), 2 * whole, 1e-5 * whole);
        for (const double bad : {0.0, -1.0, std::nan(""), double{INFINITY}}) {
          EXPECT_THROWS_ERROR(sharded.set_gradient_divisor(bad),
                              absl::StatusCode::kInvalidArgument,
                              absl::StrCat("got ", bad));
        }
        EXPECT_EQ(sharded.gradient_divisor(), 0.5);
      });
}

// J.47: a unit of a million elements, called three times with factors 1, 10 and
// 100.
TEST(GradientCases, Grd08EveryCallCounts) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Model");
            auto unit = model->AddChild("unit", MakeLinear(1000, 1000, false));
            model->body = [unit](const Variable& x) {
              Variable sum = (*unit)(x);
              for (const double factor : {10.0, 100.0}) {
                sum = functions::Add(sum, functions::Scale((*unit)(x), factor));
              }
              return sum;
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            pass.Backward(SumOf(Case(model)(Variable(ops::Ones({1, 1000})))));
          },
      .num_steps = 1,
      .learning_rate = 0.0};
  for (const Mode& mode : AllModes(2)) {
    const Outcome outcome = RunSharded(scenario, 2, mode);
    const std::vector<double>& gradient = outcome.gradients.at("unit.weight");
    EXPECT_EQ(gradient.size(), 1000000u);
    EXPECT_EQ(std::count(gradient.begin(), gradient.end(), 111.0), 1000000)
        << mode.name;
  }
}

TEST(GradientCases, Grd09TwoForwardsThenTwoBackwards) {
  Scenario scenario = MlpScenario();
  scenario.train = [](Module& model, Pass& pass) {
    const Variable a =
        SumOfSquares(Case(model)(CaseInput(2, 4, pass.rank(), 7)));
    const Variable b =
        SumOfSquares(Case(model)(CaseInput(3, 4, pass.rank(), pass.step())));
    pass.Backward(a);
    pass.Backward(b);
  };
  ExpectOracle(scenario, {1, 2, 3});
}

// J.53
TEST(GradientCases, TwoBackwardsWithoutClearingAddUp) {
  Scenario scenario = MlpScenario();
  scenario.train = [](Module& model, Pass& pass) {
    for (int part = 0; part < 3; ++part) {
      pass.Backward(SumOfSquares(
          Case(model)(CaseInput(2, 4, pass.rank(), 10 * pass.step() + part))));
    }
  };
  scenario.learning_rate = 0.05;
  ExpectOracle(scenario, {1, 2, 3});
}

// J.52
TEST(GradientCases, NoSyncAddsUpAndReducesOnce) {
  Scenario plain = MlpScenario();
  plain.num_steps = 1;
  plain.train = [](Module& model, Pass& pass) {
    for (int part = 0; part < 3; ++part) {
      pass.Backward(
          SumOfSquares(Case(model)(CaseInput(2, 4, pass.rank(), part))));
    }
  };
  const Outcome expected = RunOracle(plain, 3);
  Scenario nothing = plain;
  nothing.num_steps = 0;
  for (const Mode& mode : AllModes(3)) {
    SCOPED_TRACE(mode.name);
    const Outcome actual = RunSharded(
        nothing, 3, mode, [&](Module& model, FullyShardedModule& sharded) {
          Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
          {
            const auto no_sync = sharded.NoSync();
            for (int part = 0; part < 2; ++part) {
              pass.Backward(SumOfSquares(
                  Case(model)(CaseInput(2, 4, pass.rank(), part))));
              for (const ScheduleStep& step : sharded.schedule().current()) {
                EXPECT_NE(step.kind, StepKind::kReduce);
              }
            }
          }
          pass.Backward(
              SumOfSquares(Case(model)(CaseInput(2, 4, pass.rank(), 2))));
          Descend(model, plain.learning_rate);
        });
    for (const auto& [name, values] : expected.parameters) {
      const std::vector<double>& got = actual.parameters.at(name);
      ASSERT_EQ(got.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(got[i], values[i], 1e-5) << name;
      }
    }
  }
}

// The loss comes from a value inside; the second layer gets no gradient.
TEST(GradientCases, Grd11LossOfAnInnerValue) {
  auto kept = std::make_shared<std::map<std::thread::id, Variable>>();
  auto mutex = std::make_shared<std::mutex>();
  const Scenario scenario{
      .make_model =
          [kept, mutex] {
            auto model = std::make_shared<CaseModule>("Model");
            auto first = model->AddChild("first", MakeLinear(4, 4));
            auto second = model->AddChild("second", MakeLinear(4, 4));
            model->body = [=](const Variable& x) {
              const Variable inner = Curve((*first)(x));
              {
                const std::scoped_lock lock(*mutex);
                (*kept)[std::this_thread::get_id()] = inner;
              }
              return (*second)(inner);
            };
            return model;
          },
      .train =
          [kept, mutex](Module& model, Pass& pass) {
            const Variable out =
                Case(model)(CaseInput(2, 4, pass.rank(), pass.step()));
            Variable inner;
            {
              const std::scoped_lock lock(*mutex);
              inner = (*kept)[std::this_thread::get_id()];
              kept->erase(std::this_thread::get_id());
            }
            pass.Backward(SumOfSquares(inner));
          }};
  ExpectOracle(scenario, {2, 3});
}

TEST(GradientCases, Grd13CastOfTheOutputKeepsTheGradient) {
  Scenario scenario = MlpScenario();
  scenario.num_steps = 1;
  const Outcome expected = RunOracle(scenario, 2);
  Mode mode = PerParameter();
  mode.options.mixed_precision.output_dtype = DType::kBFloat16;
  scenario.train = [](Module& model, Pass& pass) {
    const Variable y = Case(model)(CaseInput(3, 4, pass.rank(), pass.step()));
    EXPECT_EQ(y.dtype(), DType::kBFloat16);
    pass.Backward(SumOfSquares(functions::Cast(y, DType::kFloat32)));
  };
  const Outcome actual = RunSharded(scenario, 2, mode);
  ExpectSame(actual, expected, 2e-2);
}

TEST(GradientCases, Grd14UnitsOfAnySizeGiveTheSameBits) {
  Scenario scenario = MlpScenario();
  scenario.make_model = [] { return MakeMlp({4, 6, 5, 3, 7, 4, 6, 5, 2}); };
  scenario.num_steps = 20;
  scenario.learning_rate = 0.02;
  const Outcome expected = RunSharded(scenario, 4, FullShard());
  std::vector<WrapPolicy> policies = {WrapNothing{}, WrapByName{{"0", "3"}},
                                      WrapBySize{50}};
  for (const WrapPolicy& policy : policies) {
    for (Mode mode : AllModes(4)) {
      SCOPED_TRACE(absl::StrCat(mode.name, ", policy ", policy.index()));
      mode.options.auto_wrap_policy = policy;
      const Outcome actual = RunSharded(scenario, 4, mode);
      EXPECT_EQ(actual.losses, expected.losses);
      EXPECT_EQ(actual.parameters, expected.parameters);
    }
  }
}

// Freed memory is poisoned in these runs, so stale reads would be NaN.
TEST(GradientCases, Grd15RootOwnsParametersItself) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Model");
            const Variable scale = model->AddParameter("scale", {4});
            auto layer = model->AddChild("layer", MakeLinear(4, 4));
            const Variable offset = model->AddParameter("offset", {4});
            model->body = [=](const Variable& x) {
              const Variable y = (*layer)(functions::Mul(x, scale));
              return functions::Add(Curve(y), functions::Mul(offset, scale));
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x = CaseInput(2, 4, pass.rank(), pass.step());
            const Variable y = Case(model)(x);
            pass.Backward(SumOfSquares(y));
          }};
  ExpectOracle(scenario, {1, 2, 3});
}

TEST(GradientCases, Grd16AnyHookedEntryPointGathers) {
  Scenario scenario = MlpScenario();
  scenario.make_model = [] {
    auto model = MakeMlp({4, 6, 2});
    auto scale = model->AddParameter("scale", {4});
    model->encode_body = [scale, body = model->body](const Variable& x) {
      return Curve(body(functions::Mul(x, scale)));
    };
    return model;
  };
  scenario.train = [](Module& model, Pass& pass) {
    const Variable x = CaseInput(2, 4, pass.rank(), pass.step());
    pass.Backward(SumOfSquares(Case(model).Encode(x)));
  };
  ExpectOracle(scenario, {2, 3});
}

// J.44, MEM-05: evaluation leaves nothing gathered.
TEST(GradientCases, Mem05NoGradForwardLeavesOnlyShards) {
  Scenario scenario = MlpScenario();
  const Outcome expected = RunOracle(scenario, 2);
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    ExpectSame(RunSharded(scenario, 2, mode,
                          [&](Module& model, FullyShardedModule& sharded) {
                            const NoGrad no_grad;
                            const Variable y =
                                Case(model)(CaseInput(2, 4, 0, 0));
                            EXPECT_FALSE(y.requires_grad());
                            ExpectNothingGathered(sharded);
                          }),
               expected, 1e-5);
  }
}

// HNG-05: units may run in another order each step.
TEST(GradientCases, Hng05OrderOfUnitsChangesFromStepToStep) {
  const auto model_with = [](int calls_a_step) {
    return [calls_a_step] {
      auto model = std::make_shared<CaseModule>("Model");
      std::vector<std::shared_ptr<CaseModule>> layers;
      for (int i = 0; i < 3; ++i) {
        layers.push_back(
            model->AddChild(absl::StrCat("l", i), MakeLinear(4, 4)));
      }
      auto calls = std::make_shared<int>(0);
      model->body = [=](const Variable& x) {
        const bool odd = (*calls)++ / calls_a_step % 2 == 1;
        Variable y = x;
        for (const int i :
             odd ? std::vector<int>{0, 1, 2} : std::vector<int>{2, 0, 1}) {
          y = Curve((*layers[i])(y));
        }
        return y;
      };
      return model;
    };
  };
  Scenario scenario = MlpScenario();
  scenario.num_steps = 5;
  scenario.make_model = model_with(2);
  const Outcome expected = RunOracle(scenario, 2);
  scenario.make_model = model_with(1);
  for (Mode mode : AllModes(2)) {
    for (const bool forward_prefetch : {false, true}) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", forward_prefetch));
      mode.options.forward_prefetch = forward_prefetch;
      ExpectSame(RunSharded(scenario, 2, mode), expected, 1e-5);
    }
  }
}

// Six layers, of which backward reaches the last three.
Scenario HalfScenario(int64_t width) {
  return {.make_model =
              [width] {
                auto model = std::make_shared<CaseModule>("Model");
                std::vector<std::shared_ptr<CaseModule>> layers;
                for (int i = 0; i < 6; ++i) {
                  layers.push_back(model->AddChild(absl::StrCat("l", i),
                                                   MakeLinear(width, width)));
                }
                model->body = [=](const Variable& x) {
                  Variable y = x;
                  for (int i = 0; i < 6; ++i) {
                    y = Curve((*layers[i])(y));
                    if (i == 2) y = y.Detach();
                  }
                  return y;
                };
                return model;
              },
          .train =
              [width](Module& model, Pass& pass) {
                const Variable x =
                    CaseInput(2, width, pass.rank(), pass.step());
                pass.Backward(SumOfSquares(Case(model)(x)));
              }};
}

// HNG-06, J.43
TEST(GradientCases, Hng06WrongPrefetchIsReleasedInTheEnd) {
  ExpectOracle(HalfScenario(4), {2});
  for (const Mode& mode : AllModes(2)) {
    RunSharded(HalfScenario(4), 2, mode,
               [](Module&, FullyShardedModule& sharded) {
                 ExpectNothingGathered(sharded);
               });
  }
}

// And memory stays that of three units.
TEST(GradientCases, Hng06WrongPrefetchTakesNoMoreThanThreeUnits) {
  static constexpr int64_t kWidth = 32;
  static constexpr int64_t kUnitBytes = (kWidth * kWidth + kWidth) * 4;
  Scenario scenario = HalfScenario(kWidth);
  scenario.learning_rate = 0;
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost}) {
    for (Mode mode : {FullShard(), PerParameter()}) {
      mode.options.backward_prefetch = prefetch;
      mode.options.forward_prefetch = true;
      RunSharded(scenario, 2, mode, [](Module&, FullyShardedModule&) {
        const MemoryStats stats = AllocatorOf(CurrentDevice()).stats();
        EXPECT_LE(stats.peak(MemoryCategory::kUnsharded), 3 * kUnitBytes);
        EXPECT_GE(stats.peak(MemoryCategory::kUnsharded), kUnitBytes);
      });
    }
  }
}

// J.45: inputs need no gradient, parameters do.
TEST(GradientCases, PrefetchOfEveryKindGivesTheSameBits) {
  Scenario scenario = MlpScenario();
  scenario.num_steps = 3;
  const Outcome expected = RunSharded(scenario, 3, FullShard());
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kNone, BackwardPrefetch::kPre,
        BackwardPrefetch::kPost}) {
    for (Mode mode : AllModes(3)) {
      mode.options.backward_prefetch = prefetch;
      mode.options.limit_all_gathers = prefetch != BackwardPrefetch::kPost;
      SCOPED_TRACE(
          absl::StrCat(mode.name, " ", BackwardPrefetchName(prefetch)));
      const Outcome actual = RunSharded(scenario, 3, mode);
      EXPECT_EQ(actual.parameters, expected.parameters);
      EXPECT_EQ(actual.losses, expected.losses);
    }
  }
}

}  // namespace
}  // namespace tessera
