// A safetensors file whose tensors are read in place.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Checks the whole header, then maps the file: a slice is memory of the
// mapping, except where it is not aligned to its elements, or bool, whose bytes
// have to be made 0 or 1; those are copies.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenSafetensorsWeights(
    const std::string& path);

}  // namespace tessera
