// Ranks, mesh and plugin of a run, and the models that were prepared for it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fully_shard.h"
#include "fsdp/plugin.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// What preparing a model does, in this order; see Fsdp2PrepareModel.
enum class PrepareStep {
  kUpcast,          // Trainable parameters to float32.
  kSnapshot,        // Rank 0 notes the values.
  kToMeta,          // Whole parameters go.
  kShard,           // Units, from the inside out; the root last.
  kLoad,            // Rank 0's values come back, as shards.
  kRestoreBuffers,  // And those of buffers that checkpoints lack.
  kSwitch           // The optimizer goes on with the shards.
};
const char* PrepareStepName(PrepareStep step);

struct AcceleratorOptions {
  FullyShardedDataParallelPlugin plugin = {};
  MeshShape mesh = {};
  // "no", "bf16", "fp16" or "fp32": fills plugin.sharding.mixed_precision when
  // that says nothing itself.
  std::string mixed_precision = "no";
  // Called on each rank before every step of preparing a model.
  std::function<void(PrepareStep step)> on_prepare_step = {};
};

// One a rank. Belongs to one thread.
class Accelerator {
 public:
  // Called by all ranks; blocks. Errors, the same on all ranks: options that do
  // not go together, an unknown precision.
  static absl::StatusOr<std::unique_ptr<Accelerator>> Create(
      const std::shared_ptr<Communicator>& world,
      const AcceleratorOptions& options = {});

  const std::shared_ptr<Communicator>& world() const { return mesh_->world(); }
  const std::shared_ptr<DeviceMesh>& mesh() const { return mesh_; }
  const FullyShardedDataParallelPlugin& plugin() const {
    return options_.plugin;
  }
  const std::string& mixed_precision() const {
    return options_.mixed_precision;
  }

  // Shards `model` (Fsdp2PrepareModel, or FullyShard for version 1), and has
  // `optimizer`, made for the plain model and perhaps stepped, go on with the
  // shards. Called by all ranks. Errors are the same on all ranks, and those of
  // names come before anything is changed. A model that was prepared is not
  // sharded again. `model` outlives the result.
  absl::StatusOr<std::shared_ptr<FullyShardedModule>> Prepare(
      Module& model, Optimizer& optimizer);

  // The sharded form of a model that was prepared, or null: it is remembered as
  // long as its owner, the caller, keeps it.
  std::shared_ptr<FullyShardedModule> Prepared(const Module& model) const;

  // Says that a step begins, and remembers a sharded model: for the functions
  // that prepare models.
  void Begin(PrepareStep step) const;
  void Remember(const std::shared_ptr<FullyShardedModule>& model);

 private:
  Accelerator(AcceleratorOptions options, std::shared_ptr<DeviceMesh> mesh)
      : options_(std::move(options)), mesh_(std::move(mesh)) {}

  const AcceleratorOptions options_;
  const std::shared_ptr<DeviceMesh> mesh_;
  std::map<const Module*, std::weak_ptr<FullyShardedModule>> prepared_;
};

}  // namespace tessera
