// Whole values that rank 0 has into a sharded model.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "fsdp/accelerator.h"
#include "fsdp/fully_shard.h"

namespace tessera {

// Whole tensors by the names of the plain model; of a tied parameter under one
// of its names or all: then the first counts, with a warning where the values
// differ.
using FullStateDict = std::map<std::string, Tensor>;

struct FullStateDictOptions {
  // Rank 0's dictionary counts, those of the others are not looked at; else
  // each rank takes its part from its own.
  bool from_rank0 = true;
};

// Sets every parameter (sharded, ignored, at the root) and persistent buffer.
// Floating types are converted to the model's. Called by all ranks, between
// steps.
//
// Before any tensor travels, all ranks compare names, shapes and types; what is
// missing, too much or of another shape is one error, the same on all ranks,
// that lists all names, and nothing is changed. Tensors then travel one at a
// time: beside the shards a rank needs memory for one whole tensor, and rank 0
// for its dictionary.
absl::Status LoadFullStateDict(FullyShardedModule& model,
                               const FullStateDict& full_state_dict,
                               const FullStateDictOptions& options = {});

// LoadFullStateDict of a model of `accelerator`, from rank 0's dictionary (the
// others may give an empty one). A model that was not made on the meta device
// works, and peaks at its shards, which are there already, and one whole tensor
// on each rank. With `cpu_offload` the shards have to be in the memory of the
// host, where they stay: kUnimplemented when they are on another device.
absl::Status Fsdp2LoadFullStateDict(Accelerator& accelerator,
                                    FullyShardedModule& model,
                                    const FullStateDict& full_state_dict,
                                    bool cpu_offload = false);

}  // namespace tessera
