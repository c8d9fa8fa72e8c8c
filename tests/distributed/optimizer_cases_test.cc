// Optimizers that hold parameters from before they were sharded, and loss
// scaling where ranks own nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/grad_scaler.h"
#include "runtime/optim/sgd.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

constexpr int kNumSteps = 4;

std::vector<ParameterGroup> GroupOf(Module& model) {
  ParameterGroup group{{}, {.lr = 0.05, .weight_decay = 0.1}};
  for (const NamedVariable& p : model.NamedParameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  return {group};
}

void Train(Module& model, Pass& pass) {
  const Variable x = CaseInput(3, 4, pass.rank(), pass.step());
  pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
}

// Rows that four ranks do not divide, and fewer rows than ranks.
std::shared_ptr<CaseModule> MakeUneven() {
  auto model = MakeMlp({4, 7, 3});
  FillParameters(*model);
  return model;
}

Values TrainInOneProcess(int world_size) {
  const auto model = MakeUneven();
  AdamW optimizer(GroupOf(*model));
  for (int step = 0; step < kNumSteps; ++step) {
    model->ZeroGrad();
    for (int rank = 0; rank < world_size; ++rank) {
      Pass pass(rank, step, 1.0 / world_size);
      Train(*model, pass);
    }
    optimizer.Step();
  }
  Values values;
  for (const NamedVariable& p : model->NamedParameters()) {
    values[p.name] = p.variable.data().ToDoubles();
  }
  return values;
}

// J.30
TEST(OptimizerCases, AnAdamWMadeBeforeShardingTrainsTheShards) {
  for (const int world_size : {2, 4}) {
    const Values expected = TrainInOneProcess(world_size);
    for (const Mode& mode : AllModes(world_size)) {
      SCOPED_TRACE(mode.name);
      RunRanks(world_size, [&](const World& world) {
        const auto model = MakeUneven();
        AdamW optimizer(GroupOf(*model));
        const auto sharded = OrThrow(
            FullyShard(*model, OrThrow(DeviceMesh::Create(world, mode.mesh)),
                       mode.options));
        for (int step = 0; step < kNumSteps; ++step) {
          sharded->ZeroGrad();
          Pass pass(world->rank(), step, 1.0);
          Train(*model, pass);
          optimizer.Step();
        }
        sharded->ForEachFullParameter(
            [&](const std::string& name, const Tensor& whole) {
              EXPECT_TRUE(AllClose(whole.ToDoubles(), expected.at(name), 1e-5))
                  << name;
            });
      });
    }
  }
}

GradScaler::ReduceFlag LargestOf(const World& world) {
  return [world](Tensor& found) {
    OrThrow(world->AllReduce({&found, 1}, {.op = ReduceOp::kMax},
                             ComputeStream(found.device()), "found"));
  };
}

// NRM-06: one element on four ranks. What one rank finds skips the step on all.
TEST(OptimizerCases, Nrm06ScaledStepsOnRanksThatOwnNothing) {
  for (const bool fused : {false, true}) {
    for (Mode mode : AllModes(4)) {
      SCOPED_TRACE(mode.name);
      mode.options.mixed_precision.param_dtype = DType::kFloat16;
      mode.options.mixed_precision.reduce_dtype = DType::kFloat16;
      RunRanks(4, [&](const World& world) {
        CaseModule model;
        const Variable w = model.AddParameter("w", {1});
        model.body = [w](const Variable& x) { return functions::Mul(x, w); };
        ops::Fill(w.data(), 2);
        Sgd optimizer({{{{"w", w}}, {.lr = 1}}});
        const auto sharded = OrThrow(
            FullyShard(model, OrThrow(DeviceMesh::Create(world, mode.mesh)),
                       mode.options));
        GradScaler scaler({.init_scale = 16}, LargestOf(world));
        const auto step = [&](double gradient) {
          sharded->ZeroGrad();
          const Variable x(ops::Full({1}, gradient));
          const Variable y = functions::Cast(model(x), DType::kFloat32);
          scaler.Scale(SumOf(y)).Backward();
          const bool stepped =
              fused ? scaler.StepFused(optimizer,
                                       std::isfinite(sharded->GradNorm()))
                    : scaler.Step(optimizer);
          scaler.Update();
          return stepped;
        };
        EXPECT_TRUE(step(0.5));
        const double inf = std::numeric_limits<double>::infinity();
        EXPECT_FALSE(step(world->rank() == 3 ? inf : 0.5));
        EXPECT_EQ(scaler.scale(), 8);
        EXPECT_TRUE(step(0.25));
        sharded->ForEachFullParameter(
            [](const std::string&, const Tensor& whole) {
              EXPECT_EQ(whole.Item(), 2 - 0.5 - 0.25);
            });
      });
    }
  }
}

}  // namespace
}  // namespace tessera
