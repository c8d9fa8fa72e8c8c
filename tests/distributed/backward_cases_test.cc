// Backwards that run again, are refused, or throw.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

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

TEST(BackwardCases, Grd10TwoBackwardsThroughOneGraph) {
  Scenario scenario = MlpScenario();
  scenario.train = [](Module& model, Pass& pass) {
    const Variable y = Case(model)(CaseInput(2, 4, pass.rank(), pass.step()));
    const Variable a = SumOfSquares(y);
    const Variable b = SumOf(y);
    pass.Backward(a, /*retain_graph=*/true);
    pass.Backward(b);
  };
  ExpectOracle(scenario, {1, 2});
}

// Nothing of a refused backward is left.
TEST(BackwardCases, Grd10SecondBackwardIsRefused) {
  Scenario scenario = MlpScenario();
  scenario.train = [](Module& model, Pass& pass) {
    const Variable x = CaseInput(2, 4, pass.rank(), pass.step());
    const Variable loss = SumOfSquares(Case(model)(x));
    pass.Backward(loss);
    EXPECT_THROW(loss.Backward(), Error);
  };
  const Outcome expected = RunOracle(scenario, 2);
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    const auto after = [](Module&, FullyShardedModule& sharded) {
      EXPECT_GT(sharded.GradNorm(), 0.0);
    };
    ExpectSame(RunSharded(scenario, 2, mode, after), expected, 1e-5);
  }
}

// The squared output; behind the first layer is what makes backward throw.
Variable LossThatMayThrow(Module& model, const Pass& pass, bool throws) {
  Module& first = *model.NamedModules()[1].module;
  const int64_t hook = first.AddPostForwardHook(
      [throws](Module&, const std::vector<Variable*>& outputs) {
        if (!throws) return;
        *outputs[0] = ThrowsInBackward(*outputs[0]);
      });
  Variable loss =
      SumOfSquares(Case(model)(CaseInput(3, 4, pass.rank(), pass.step())));
  first.RemoveForwardHook(hook);
  return loss;
}

// It throws on all ranks, when two units have reduced and one has not begun.
// Neither a graph that was there before nor a new one notices.
TEST(BackwardCases, ABackwardThatThrewLeavesNothingForTheNext) {
  const Outcome expected = RunOracle(MlpScenario(), 2);
  for (const bool new_forward : {false, true}) {
    Scenario scenario = MlpScenario();
    scenario.train = [new_forward](Module& model, Pass& pass) {
      const Variable bad = LossThatMayThrow(model, pass, true);
      Variable good;
      if (!new_forward) good = LossThatMayThrow(model, pass, false);
      EXPECT_THROW(bad.Backward(), Error);
      model.ZeroGrad();
      if (new_forward) good = LossThatMayThrow(model, pass, false);
      pass.Backward(good);
    };
    for (const Mode& mode : AllModes(2)) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", new_forward));
      ExpectSame(RunSharded(scenario, 2, mode), expected, 1e-5);
    }
  }
}

// Behind it clipping and all else work at once: on what reached the shards.
TEST(BackwardCases, ABackwardThatThrewIsOver) {
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    const auto after = [](Module& model, FullyShardedModule& sharded) {
      const Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
      const Variable bad = LossThatMayThrow(model, pass, true);
      EXPECT_THROW(bad.Backward(), Error);
      EXPECT_GE(sharded.ClipGradNorm(1.0), 0.0);
      ExpectNothingGathered(sharded);
      for (const ShardedParameter& p : sharded.Parameters()) {
        if (!p.sharded) continue;
        EXPECT_EQ(p.variable.shape().num_elements(), p.length) << p.name;
      }
      sharded.ZeroGrad();
      LossThatMayThrow(model, pass, false).Backward();
      EXPECT_GT(sharded.ClipGradNorm(1.0), 0.0);
    };
    Scenario scenario = MlpScenario();
    scenario.num_steps = 1;
    RunSharded(scenario, 2, mode, after);
  }
}

// The engine cannot see that it has been left, and says how to tell it.
TEST(BackwardCases, BehindAForwardThatThrewReshardBeginsAnew) {
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    const auto after = [](Module& model, FullyShardedModule& sharded) {
      const Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
      Module& last = *model.NamedModules().back().module;
      const int64_t hook =
          last.AddPreForwardHook([](Module&, const std::vector<Variable*>&) {
            throw Error(absl::InternalError("no forward"));
          });
      EXPECT_THROW(LossThatMayThrow(model, pass, false), Error);
      last.RemoveForwardHook(hook);
      EXPECT_THROWS_ERROR(sharded.GradNorm(),
                          absl::StatusCode::kFailedPrecondition,
                          "call Reshard first");
      sharded.Reshard();
      ExpectNothingGathered(sharded);
      EXPECT_GT(sharded.GradNorm(), 0.0);
    };
    Scenario scenario = MlpScenario();
    scenario.num_steps = 1;
    RunSharded(scenario, 2, mode, after);
  }
}

}  // namespace
}  // namespace tessera
