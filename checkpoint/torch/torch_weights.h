// A state dict of torch.save as a source of weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Checks the whole structure, and that the file is one dictionary of tensors;
// the tensors stay in the mapped file until they are read. Slices are copies,
// strides resolved.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenTorchWeights(
    const std::string& path);

}  // namespace tessera
