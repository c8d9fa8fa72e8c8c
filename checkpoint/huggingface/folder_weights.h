// The weights of a Hugging Face folder, in one file or many, as one source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/folder_format.h"
#include "checkpoint/weight_source.h"

namespace tessera {

struct FolderWeights {
  FolderFormat format = FolderFormat::kSafetensors;
  std::unique_ptr<WeightSource> source;
  std::vector<std::string> warnings;
};

// Looks for model.safetensors, model.safetensors.index.json, pytorch_model.bin
// and pytorch_model.bin.index.json, in this order, and opens the first that is
// there. Every file that an index names is opened and compared with it: a file
// or a tensor that is missing, or a tensor in another file than the index says,
// or in two, is an error that names both. An index that only says a wrong total
// size, or leaves out a tensor of its files, is a warning.
absl::StatusOr<FolderWeights> OpenFolderWeights(const std::string& folder);
// The same of one format alone.
absl::StatusOr<FolderWeights> OpenFolderWeights(const std::string& folder,
                                                FolderFormat format);

}  // namespace tessera
