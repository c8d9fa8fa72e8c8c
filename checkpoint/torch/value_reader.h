// Turns the graph of a pickle into values, with tensors loaded.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/torch_container.h"

namespace tessera {

// See TorchFile::ReadValue. `file_bytes` is what the memory is measured by.
absl::StatusOr<PickleValue> ReadPickleValue(const TorchContainer& container,
                                            int64_t file_bytes);

}  // namespace tessera
