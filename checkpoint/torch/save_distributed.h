// Saves a torch distributed checkpoint from all ranks together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/pickle_value.h"
#include "fsdp/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// What one rank has of a tensor.
struct DistributedPiece {
  DistributedPath path;  // The same on all ranks.
  Shape global_shape;
  Dims offsets;   // Of the piece; empty for a tensor of no dimensions.
  Tensor tensor;  // Contiguous, on a CPU, of the piece's shape; may be empty.
};

// A value that is no tensor, and that every rank, or one of them, has.
struct DistributedValue {
  DistributedPath path;
  PickleValue value;
};

// Every piece is written once: of ranks that have the same one (replicas), the
// one with the fewest bytes so far. Rank 0 writes .metadata when all have
// ended, so that a folder with it is whole. Called by all ranks; blocks. An
// error of one rank is returned on all. What was in the folder is gone.
absl::Status SaveDistributed(Communicator& communicator,
                             const std::string& folder,
                             std::span<const DistributedPiece> pieces,
                             std::span<const DistributedValue> values);

}  // namespace tessera
