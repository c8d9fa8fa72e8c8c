// A sharded module as named tensors: what a checkpoint saves of it, and its
// export to one file for everybody.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/fully_shard.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// What this rank keeps of each parameter ("model.NAME") and of the optimizer's
// state of it ("optimizer.NAME.STATE"), and, whole, of each persistent buffer.
// Model tensors are the module's own memory. Names are those of the plain
// module. What several ranks keep is marked so, and saved once. Called by all
// ranks between steps.
std::vector<CheckpointTensor> ShardedTensors(FullyShardedModule& module,
                                             const Optimizer& optimizer);
// The same of the module alone.
std::vector<CheckpointTensor> ShardedTensors(FullyShardedModule& module);

// "FSDP2, 2x4 ranks", for Manifest::sharding.
std::string DescribeSharding(FullyShardedModule& module);

// Sets module and optimizer from a checkpoint of ShardedTensors, saved by any
// number of ranks, version and strategy: what is gathered afterwards is what
// was gathered before, bit for bit. Called by all ranks. Errors as of
// CheckpointReader::Read, and those of Optimizer::LoadState, all before
// anything is changed. States that were not there when it was saved, because a
// parameter had never had a gradient, are not there afterwards. With
// `ignore_missing`, a parameter without a saved state begins with none. Extra
// memory is one parameter's shard and the header of a file.
absl::Status ReadShardedTensors(const CheckpointReader& reader,
                                FullyShardedModule& module,
                                Optimizer& optimizer,
                                const ReadOptions& options = {});
// Sets the module alone; what was saved of an optimizer is passed over.
absl::Status ReadShardedTensors(const CheckpointReader& reader,
                                FullyShardedModule& module,
                                const ReadOptions& options = {});

struct ExportOptions {
  std::optional<DType> dtype = {};  // Of floating tensors; unset: the masters'.
};

// Writes all parameters and persistent buffers, under the names of the plain
// module, to one safetensors file: rank 0 writes, the others take part in the
// gathers. Extra memory is one parameter. Called by all ranks; an error of
// rank 0 is returned on all, and what was at `path` stays.
absl::Status ExportModel(FullyShardedModule& module, const std::string& path,
                         const ExportOptions& options = {});

// Sets every parameter and persistent buffer from a safetensors file with the
// names of the plain module; any name of a tied one will do. Called by all
// ranks, each of which reads the file.
// Errors, the same on all ranks, before anything is changed: a tensor that is
// missing, is too much, or has another shape.
absl::Status ImportModel(FullyShardedModule& module, const std::string& path);

}  // namespace tessera
