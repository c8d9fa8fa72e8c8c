// Backwards that run again, are refused, or throw.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status.h"
#include "runtime/autograd/node.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
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

// Who calls it while the forward runs is told.
TEST(BackwardCases, ReshardInsideAForwardIsRefused) {
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    const auto after = [](Module& model, FullyShardedModule& sharded) {
      const Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
      Module& last = *model.NamedModules().back().module;
      const int64_t hook = last.AddPostForwardHook(
          [&](Module&, const std::vector<Variable*>&) { sharded.Reshard(); });
      EXPECT_THROWS_ERROR(LossThatMayThrow(model, pass, false),
                          absl::StatusCode::kFailedPrecondition,
                          "called inside a forward");
      last.RemoveForwardHook(hook);
      LossThatMayThrow(model, pass, false).Backward();
      EXPECT_GT(sharded.GradNorm(), 0.0);
    };
    Scenario scenario = MlpScenario();
    scenario.num_steps = 0;
    RunSharded(scenario, 2, mode, after);
  }
}

// Nor does the next forward wait for more than itself.
TEST(BackwardCases, TheNextForwardBeginsAnew) {
  for (const bool in_forward : {false, true}) {
    const auto after = [&](Module& model, FullyShardedModule& sharded) {
      const Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
      Module& last = *model.NamedModules().back().module;
      const int64_t hook =
          last.AddPreForwardHook([&](Module&, const std::vector<Variable*>&) {
            if (in_forward) throw Error(absl::InternalError("no forward"));
          });
      EXPECT_THROW(LossThatMayThrow(model, pass, !in_forward).Backward(),
                   Error);
      last.RemoveForwardHook(hook);
      const Variable loss = LossThatMayThrow(model, pass, false);
      for (const ScheduleStep& step : sharded.schedule().current()) {
        EXPECT_FALSE(step.backward);
      }
      loss.Backward();
      EXPECT_GT(sharded.GradNorm(), 0.0);
      ExpectNothingGathered(sharded);
    };
    for (const Mode& mode : AllModes(2)) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", in_forward));
      RunSharded(MlpScenario(), 2, mode, after);
    }
  }
}

// Keeps the gradient that comes, and throws; or lets compute stand still.
class OddNode final : public Node {
 public:
  explicit OddNode(Tensor* seen) : seen_(seen) {}
  const char* name() const override { return "Odd"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    if (seen_ != nullptr) {
      *seen_ = grads[0];
      throw Error(absl::InternalError("failed on purpose"));
    }
    ComputeStream(CurrentDevice()).Enqueue("Sleep", [] {
      absl::SleepFor(absl::Milliseconds(30));
    });
    return grads;
  }

 private:
  Tensor* const seen_;
};

Variable Odd(const Variable& x, Tensor* seen) {
  return Record(x.data(), {x},
                [seen] { return std::make_shared<OddNode>(seen); });
}

// The gradient at x of a backward that throws there. Rank 1 computes it late,
// from a use of the weight that no reduction waits for.
Tensor GradientAtTheThrow(CaseModule& layer, bool late) {
  const Variable weight = layer.NamedParameters()[0].variable;
  bool detached = true;
  layer.body = [&](const Variable& x) {
    return functions::Linear(x, detached ? weight.Detach() : weight,
                             Variable());
  };
  Tensor seen;
  Variable x(ops::Ones({1, 8}));
  x.set_requires_grad(true);
  Variable y = layer(Odd(x, &seen));
  if (late) y = Odd(y, nullptr);
  detached = false;
  EXPECT_THROW(SumOfSquares(layer(y)).Backward(), Error);
  return seen;
}

// Where shards lie in place, ranks that go on write what another still reads.
TEST(BackwardCases, WhatFollowsWaitsForTheThrownBackwardOfAllRanks) {
  RunRankProcesses(
      RankKind::kSharedMemory, 2,
      [](const std::shared_ptr<Communicator>& world) {
        SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
        auto layer = MakeLinear(8, 8, /*bias=*/false);
        auto root = std::make_shared<CaseModule>("Root");
        root->AddChild("layer", layer);
        FillParameters(*root);
        FullyShardOptions options;
        options.auto_wrap_policy = WrapByClass{{"Layer"}};
        auto sharded = OrThrow(
            FullyShard(*root, OrThrow(DeviceMesh::Create(world)), options));
        const Tensor seen = GradientAtTheThrow(*layer, world->rank() == 1);
        EXPECT_OK(sharded->SetFullParameter("layer.weight", ops::Ones({8, 8})));
        const std::vector<double> values = seen.ToDoubles();
        sharded.reset();
        auto plain = MakeLinear(8, 8, /*bias=*/false);
        FillParameters(*plain);
        EXPECT_EQ(GradientAtTheThrow(*plain, false).ToDoubles(), values);
        SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
      });
}

// Of a unit of which one gradient was cleared and the others not.
TEST(BackwardCases, WhatWasClearedBeginsAtZero) {
  const auto after = [](Module& model, FullyShardedModule& sharded) {
    const Pass pass(sharded.mesh().world()->rank(), 0, 1.0);
    const Variable bias = model.NamedParameters().back().variable;
    std::vector<std::vector<double>> seen;
    for (const int num_backwards : {1, 2}) {
      sharded.ZeroGrad();
      for (int i = 0; i < num_backwards; ++i) {
        Variable(bias).ZeroGrad();
        LossThatMayThrow(model, pass, false).Backward();
      }
      seen.push_back(bias.grad().ToDoubles());
    }
    EXPECT_EQ(seen[1], seen[0]);
  };
  Scenario scenario = MlpScenario();
  scenario.num_steps = 0;
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    RunSharded(scenario, 2, mode, after);
  }
}

// Of what is kept out of sharding, too, and without a reduction.
TEST(BackwardCases, WhatABackwardDoesNotReachKeepsItsGradient) {
  for (const bool sync : {true, false}) {
    for (Mode mode : AllModes(2)) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", sync));
      mode.options.ignored_patterns = {"aside"};
      Scenario scenario;
      scenario.num_steps = 0;
      scenario.make_model = [] {
        auto model = std::make_shared<CaseModule>("Model");
        auto layer = model->AddChild("layer", MakeLinear(4, 3));
        auto aside = model->AddChild("aside", MakeLinear(3, 3));
        model->body = [=](const Variable& x) {
          const Variable y = (*layer)(x);
          return x.shape().dim(0) == 1 ? (*aside)(y) : y;
        };
        return model;
      };
      const auto after = [sync](Module& model, FullyShardedModule& sharded) {
        const int rank = sharded.mesh().world()->rank();
        SumOfSquares(Case(model)(CaseInput(1, 4, rank, 0))).Backward();
        const Variable bias = model.NamedParameters().back().variable;
        const std::vector<double> before = bias.grad().ToDoubles();
        sharded.set_requires_gradient_sync(sync);
        SumOfSquares(Case(model)(CaseInput(2, 4, rank, 0))).Backward();
        sharded.set_requires_gradient_sync(true);
        ASSERT_TRUE(bias.grad().defined());
        EXPECT_EQ(bias.grad().ToDoubles(), before);
      };
      RunSharded(scenario, 2, mode, after);
    }
  }
}

}  // namespace
}  // namespace tessera
