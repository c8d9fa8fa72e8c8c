#include "tests/distributed/sharded_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/testing/delaying_communicator.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

Mode Version1(ShardingStrategy strategy, const MeshShape& mesh) {
  Mode mode;
  mode.name = ShardingStrategyName(strategy);
  mode.mesh = mesh;
  if (mesh.has_replicate_axis) {
    absl::StrAppend(&mode.name, " ", mesh.ToString());
  }
  mode.options.fsdp_version = 1;
  mode.options.sharding_strategy = strategy;
  return mode;
}

Mode Version2(const std::string& name, ReshardAfterForward reshard,
              const MeshShape& mesh) {
  Mode mode;
  mode.name = "version 2, " + name;
  mode.mesh = mesh;
  mode.options.fsdp_version = 2;
  mode.options.reshard_after_forward = reshard;
  return mode;
}

MeshShape Grid(int replicate, int shard) {
  return {.replicate = replicate, .shard = shard, .has_replicate_axis = true};
}

std::vector<double> ZerosOf(int64_t count) {
  return std::vector<double>(count, 0.0);
}

void ExpectClose(const std::string& name, const std::vector<double>& actual,
                 const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double d = std::abs(actual[i] - expected[i]);
    difference = std::isnan(d) ? INFINITY : std::max(difference, d);
  }
  EXPECT_LE(difference, tolerance * largest)
      << name << ", of values up to " << largest;
}

void GatherOutcome(FullyShardedModule& sharded, Outcome& outcome) {
  sharded.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        outcome.parameters[name] = whole.ToDoubles();
        outcome.shapes[name] = whole.shape();
      });
  sharded.ForEachFullTensor(
      [&](const ShardedParameter& p) {
        const Tensor& grad = p.variable.grad();
        return grad.defined() ? grad : ops::Zeros(p.variable.shape());
      },
      [&](const std::string& name, const Tensor& whole) {
        outcome.gradients[name] = whole.ToDoubles();
      });
}

}  // namespace

void Pass::Backward(const Variable& loss, bool retain_graph) {
  loss_ += loss.data().Item();
  loss.Backward(ops::Full(loss.shape(), weight_, {loss.dtype(), loss.device()}),
                retain_graph);
}

Mode FullShard() { return Version1(ShardingStrategy::kFullShard, {}); }
Mode PerParameter(bool reshard_after_forward) {
  return Version2(reshard_after_forward ? "reshard" : "keep",
                  reshard_after_forward, {});
}

std::vector<Mode> AllModes(int world_size) {
  std::vector<Mode> modes = {
      FullShard(),
      Version1(ShardingStrategy::kShardGradOp, {}),
      Version1(ShardingStrategy::kNoShard, {}),
      Version1(ShardingStrategy::kHybridShard, Grid(1, world_size)),
      Version1(ShardingStrategy::kHybridShardZero2, Grid(world_size, 1)),
      PerParameter(true),
      PerParameter(false)};
  if (world_size % 2 == 0) {
    const MeshShape grid = Grid(world_size / 2, 2);
    modes.push_back(Version1(ShardingStrategy::kHybridShard, grid));
    modes.push_back(Version2("grid " + grid.ToString(), true, grid));
    modes.push_back(Version2("reshard among 2", 2, {}));
  }
  return modes;
}

void Descend(Module& model, double learning_rate) {
  for (const NamedVariable& p : model.NamedParameters()) {
    const Tensor& grad = p.variable.grad();
    if (grad.defined()) ops::AddInto(p.variable.data(), grad, -learning_rate);
  }
}

Outcome RunOracle(const Scenario& scenario, int world_size) {
  const std::shared_ptr<Module> model = scenario.make_model();
  FillParameters(*model);
  Outcome outcome;
  for (int step = 0; step < scenario.num_steps; ++step) {
    model->ZeroGrad();
    double loss = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      Pass pass(rank, step, 1.0 / world_size);
      scenario.train(*model, pass);
      loss += pass.loss() / world_size;
    }
    outcome.losses.push_back(loss);
    Descend(*model, scenario.learning_rate);
  }
  for (const NamedVariable& p : model->NamedParameters()) {
    outcome.parameters[p.name] = p.variable.data().ToDoubles();
    outcome.shapes[p.name] = p.variable.shape();
    const Tensor& grad = p.variable.grad();
    outcome.gradients[p.name] =
        grad.defined() ? grad.ToDoubles()
                       : ZerosOf(p.variable.shape().num_elements());
  }
  return outcome;
}

Outcome RunSharded(
    const Scenario& scenario, int world_size, const Mode& mode,
    const std::function<void(Module&, FullyShardedModule&)>& after) {
  std::vector<Outcome> outcomes(world_size);
  RunRanks(world_size, [&](std::shared_ptr<Communicator> world) {
    AllocatorOf(CurrentDevice()).SetPoison(true);
    AllocatorOf(CurrentDevice()).ResetPeak();
    SetComputeStreamMode(CurrentDevice(), mode.compute);
    const int rank = world->rank();
    if (mode.longest_delay > absl::ZeroDuration()) {
      world = std::make_shared<DelayingCommunicator>(world, mode.longest_delay,
                                                     rank);
    }
    Outcome& outcome = outcomes[rank];
    const std::shared_ptr<Module> model = scenario.make_model();
    FillParameters(*model);
    const std::shared_ptr<DeviceMesh> mesh =
        OrThrow(DeviceMesh::Create(world, mode.mesh));
    const std::unique_ptr<FullyShardedModule> sharded =
        OrThrow(FullyShard(*model, mesh, mode.options));
    for (int step = 0; step < scenario.num_steps; ++step) {
      sharded->ZeroGrad();
      Pass pass(rank, step, 1.0);
      if (mode.longest_delay > absl::ZeroDuration()) {
        const absl::Duration pause =
            mode.longest_delay * ((step * 7 + rank * 3) % 5) / 4;
        ComputeStream(CurrentDevice()).Enqueue("Delay", [pause] {
          absl::SleepFor(pause);
        });
      }
      scenario.train(*model, pass);
      outcome.losses.push_back(pass.loss());
      Descend(*model, scenario.learning_rate);
    }
    if (after != nullptr) after(*model, *sharded);
    GatherOutcome(*sharded, outcome);
    SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  });
  for (int rank = 1; rank < world_size; ++rank) {
    EXPECT_TRUE(outcomes[rank].parameters == outcomes[0].parameters)
        << "rank " << rank << " gathers other values than rank 0";
    for (size_t i = 0; i < outcomes[0].losses.size(); ++i) {
      outcomes[0].losses[i] += outcomes[rank].losses[i];
    }
  }
  for (double& loss : outcomes[0].losses) loss /= world_size;
  return outcomes[0];
}

void ExpectSame(const Outcome& actual, const Outcome& expected,
                double tolerance) {
  ExpectClose("losses", actual.losses, expected.losses, tolerance);
  EXPECT_EQ(actual.shapes, expected.shapes);
  for (const auto& [name, values] : expected.parameters) {
    ASSERT_TRUE(actual.parameters.contains(name)) << name;
    ExpectClose(name, actual.parameters.at(name), values, tolerance);
    ExpectClose("gradient of " + name, actual.gradients.at(name),
                expected.gradients.at(name), tolerance);
  }
}

void ExpectOracle(const Scenario& scenario, const std::vector<int>& world_sizes,
                  double tolerance) {
  for (const int world_size : world_sizes) {
    const Outcome expected = RunOracle(scenario, world_size);
    for (const Mode& mode : AllModes(world_size)) {
      SCOPED_TRACE(absl::StrCat(mode.name, " on ", world_size, " ranks"));
      ExpectSame(RunSharded(scenario, world_size, mode), expected, tolerance);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

void ExpectNothingGathered(FullyShardedModule& sharded) {
  if (sharded.options().sharding_strategy == ShardingStrategy::kNoShard) return;
  for (const ShardedParameter& p : sharded.Parameters()) {
    if (!p.sharded || sharded.mesh().shape().shard == 1) continue;
    EXPECT_EQ(*sharded.StateOf(p.name), UnitState::kSharded) << p.name;
  }
}

}  // namespace tessera
