// The index of a model whose weights lie in several files: which tensor is in
// which.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

struct WeightIndex {
  std::map<std::string, std::string> weight_map;  // Tensor to file name.
  std::optional<double> total_size = {};  // What it says of itself, in bytes.
};

// From the text of a *.index.json. `extension` (".safetensors") is what every
// file name must end in. Names that lead out of the folder, a tensor that
// stands twice and an empty map are refused; errors name the tensor.
absl::StatusOr<WeightIndex> ParseWeightIndex(const std::string& json_text,
                                             const std::string& extension);

// As transformers writes it.
std::string SerializeWeightIndex(
    const std::map<std::string, std::string>& weight_map, int64_t total_bytes,
    int64_t num_elements);

}  // namespace tessera
