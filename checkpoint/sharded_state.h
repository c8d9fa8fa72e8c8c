// A sharded module as named tensors: what a checkpoint saves of it.
#pragma once

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
// module; a tied parameter is there once, with its other names as aliases. What
// several ranks keep is marked so, and saved once. Called by all ranks between
// steps.
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

}  // namespace tessera
