// A state dict of torch.save as a source of weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Checks the whole structure, and that the file is one dictionary of tensors;
// the tensors stay in the mapped file until they are read. Slices are copies,
// strides resolved.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenTorchWeights(
    const std::string& path);

// The tensors of a file, however they are nested, by their whole names.
std::unique_ptr<WeightSource> TorchEntriesOf(
    std::shared_ptr<const TorchFile> file);

}  // namespace tessera
