// Models whose shapes are known twice: as code, and written by hand for the
// formula of memory; and how they are trained.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "runtime/device/allocator.h"
#include "runtime/optim/adamw.h"
#include "tests/distributed/memory_formula.h"
#include "tests/testing/run_ranks.h"

namespace tessera {

struct MemoryModel {
  std::string name;
  std::function<std::shared_ptr<Module>()> make;
  // Forward and loss of one small batch.
  std::function<Variable(Module& module, int rank, int step)> loss;
  ModelShapes shapes;
  // What a step in float32 keeps for backward and computes with, at most, by
  // hand.
  int64_t activation_bound = 0;
  int64_t data_bytes = 0;  // Of tables that it makes once.
};

MemoryModel TinyGpt2();
MemoryModel TinyLlama();
// Layers of rows that no number of ranks divides, a vector, a scalar.
MemoryModel UnevenModel();
// `num_layers` linear layers of width x width, without bias.
MemoryModel EqualLayers(int num_layers, int64_t width);

// One way to train.
struct MemoryCase {
  MemoryPlan plan;
  FullyShardOptions options;
  MeshShape mesh;
};
// Every strategy that `world_size` ranks allow, in float32 or with bfloat16
// parameters; ranks see one memory or not.
std::vector<MemoryCase> MemoryCases(int world_size, bool bfloat16,
                                    bool one_memory, bool shards_in_place);

// A model built without memory, sharded, and its optimizer.
class MemoryRun {
 public:
  MemoryRun(const MemoryModel& model, const MemoryCase& test,
            const std::shared_ptr<Communicator>& world);
  // Ends when nothing is queued on the device. One that throws can be tried
  // again.
  void Step();
  // Among the ranks that deal one copy out.
  int shard_rank() const { return shard_rank_; }
  FullyShardedModule& sharded() { return *sharded_; }
  Module& module() { return *module_; }

 private:
  const MemoryModel& model_;
  const int rank_;
  const int shard_rank_;
  std::shared_ptr<Module> module_;
  std::unique_ptr<FullyShardedModule> sharded_;
  std::unique_ptr<AdamW> optimizer_;
  int step_ = 0;
};

// Of the current device.
MemoryStats StatsNow();

}  // namespace tessera
