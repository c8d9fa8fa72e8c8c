// The model in a checkpoint of ours as a source of weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Tensors "model.NAME" of the checkpoint in `folder` under their plain names;
// what an optimizer keeps is left out, a tied tensor is there under each of its
// names. A checkpoint without such names: all tensors. Nothing is kept in
// memory, but for a tensor whose elements are saved in another order than
// row-major: all of it, from its first slice to its last.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenNativeWeights(
    const std::string& folder);

}  // namespace tessera
