// Values from files straight into a model, sharded or not.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/huggingface/weight_match.h"
#include "checkpoint/weight_source.h"
#include "fsdp/fully_shard.h"

namespace tessera {

struct LoadOptions {
  MatchOptions match = {};
  // Only rank 0 opens the files and hands out tensor by tensor; else each rank
  // reads what it keeps.
  bool rank0_reads = false;
};

// Sets every parameter and persistent buffer from the weights of a Hugging Face
// folder; floating types are converted on the way. Called by all ranks, between
// steps.
//
// Errors are the same on all ranks, and those of OpenFolderWeights and
// MatchWeights, and files that differ between ranks, come before anything is
// changed. Beside the shards a rank needs memory for a few MB of a tensor, or
// for one whole tensor where it is not stored row by row. Rank 0 logs warnings,
// such as a tied tensor that the file holds twice with different values.
absl::Status LoadFolderWeights(FullyShardedModule& module,
                               const std::string& folder,
                               const LoadOptions& options = {});
// The same from any source; `source` may be null on ranks that do not read.
absl::Status LoadWeights(FullyShardedModule& module, const WeightSource* source,
                         const LoadOptions& options = {});

// Of a module that is not sharded, and on a device.
absl::Status LoadFolderWeights(Module& module, const std::string& folder,
                               const MatchOptions& options = {});
absl::Status LoadWeights(Module& module, const WeightSource& source,
                         const MatchOptions& options = {});

// A FullyShardOptions::param_init_fn for parameters whose values are going to
// be loaded: zeros, since drawing random numbers takes longer. Buffers get
// their start values.
void ZeroStartValues(Module& module, const Initializer& initializer);

}  // namespace tessera
