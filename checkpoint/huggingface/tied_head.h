// A head that a config ties to the embedding, and the weights do not.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/folder_config.h"

namespace tessera {

// ReadFolderConfig, looked at beside the weights: where the config ties head
// and embedding and `folder` holds two that differ, as a model has that was
// trained further without the tie, `model` is not tied and a warning says so.
// transformers does the same. Both are read for it, in pieces, where both are
// there; weights that cannot be opened are an error of who loads them.
absl::StatusOr<FolderConfig> ReadConfigOfWeights(const std::string& folder);

}  // namespace tessera
