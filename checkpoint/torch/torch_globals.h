// The names of Python that files of tensors may use: all that there are.
#pragma once

#include <span>

#include "checkpoint/torch/pickle_graph.h"

namespace tessera {

// In files of torch.save: tensors and plain containers.
std::span<const PickleGlobal> TorchFileGlobals();
// In the .metadata file of a distributed checkpoint.
std::span<const PickleGlobal> TorchMetadataGlobals();

}  // namespace tessera
