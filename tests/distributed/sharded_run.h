// Trains a small model sharded over ranks, and unsharded in one process on the
// samples of all ranks: the oracle.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fully_shard.h"
#include "fsdp/options.h"
#include "runtime/device/device.h"
#include "runtime/nn/module.h"

namespace tessera {

// One rank's share of a step. The oracle plays all ranks, one after the other,
// with a weight of 1 / ranks, and adds their gradients.
class Pass {
 public:
  Pass(int rank, int step, double weight)
      : rank_(rank), step_(step), weight_(weight) {}

  int rank() const { return rank_; }
  int step() const { return step_; }
  void Backward(const Variable& loss, bool retain_graph = false);
  double loss() const { return loss_; }  // The sum of those given to Backward.

 private:
  const int rank_;
  const int step_;
  const double weight_;
  double loss_ = 0;
};

struct Scenario {
  std::function<std::shared_ptr<Module>()> make_model;
  // Forward and backward of one rank.
  std::function<void(Module& model, Pass& pass)> train;
  int num_steps = 2;
  double learning_rate = 0.125;
};

// One way to shard.
struct Mode {
  std::string name;
  FullyShardOptions options;
  MeshShape mesh;
  StreamMode compute = StreamMode::kInline;
  // Collectives and kernels start up to this late, at random.
  absl::Duration longest_delay = absl::ZeroDuration();
};

// Every strategy of both versions that `world_size` ranks allow.
std::vector<Mode> AllModes(int world_size);
Mode FullShard();                                      // Version 1.
Mode PerParameter(bool reshard_after_forward = true);  // Version 2.

// What a run ends with: whole parameters by name.
struct Outcome {
  std::vector<double> losses;  // The mean over ranks of each step.
  std::map<std::string, std::vector<double>> parameters;
  // Of the last step; 0 where there is none.
  std::map<std::string, std::vector<double>> gradients;
  std::map<std::string, Shape> shapes;
};

Outcome RunOracle(const Scenario& scenario, int world_size);
// `after` runs on every rank behind the last step.
Outcome RunSharded(
    const Scenario& scenario, int world_size, const Mode& mode,
    const std::function<void(Module&, FullyShardedModule&)>& after = nullptr);

// max|difference| within `tolerance` of each tensor's largest value, and losses
// too.
void ExpectSame(const Outcome& actual, const Outcome& expected,
                double tolerance);

// Runs every mode on each of `world_sizes` and compares it with the oracle.
void ExpectOracle(const Scenario& scenario, const std::vector<int>& world_sizes,
                  double tolerance = 1e-5);

// No unit of a model that shards is gathered between steps.
void ExpectNothingGathered(FullyShardedModule& sharded);

// One plain descent: p -= rate * gradient, of what has a gradient.
void Descend(Module& model, double learning_rate);

}  // namespace tessera
