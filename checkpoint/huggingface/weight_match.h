// Which tensor of other people's files is which tensor of a model of ours.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// A parameter or buffer that wants a value.
struct WantedWeight {
  // Under which a file may hold it: the plain module's names, several of a
  // tied parameter, the module's first one first.
  std::vector<std::string> names;
  DType dtype = DType::kFloat32;  // Files may have another floating type.
  Shape shape;
};

struct WeightMatch {
  // In the source; nothing: the file has none, and that was allowed.
  std::optional<std::string> name = {};
  // Further tensors of the file for the same parameter, which is tied here.
  std::vector<std::string> tied = {};
};

struct MatchOptions {
  // Parameters without a tensor keep what they hold; tensors without a
  // parameter are not read.
  bool allow_missing = false;
  bool allow_unexpected = false;
  // Parameters, by their first name, that keep what they hold and that no
  // tensor is for; unset: none.
  std::function<bool(const std::string& name)> left_out = {};
};

// One match for each of `wanted`, in order. Names are those of the plain
// module, or without the base model's prefix ("transformer.", "model."), as
// files of base models have them; buffers that some versions of transformers
// saved are passed over.
//
// One error (kFailedPrecondition) lists everything that does not fit: missing
// and unexpected names, other shapes (and whether it is the transpose), types
// that are not converted, names with and without the prefix in one file.
absl::StatusOr<std::vector<WeightMatch>> MatchWeights(
    const std::vector<WantedWeight>& wanted,
    const std::map<std::string, WeightInfo>& weights,
    const MatchOptions& options = {});

}  // namespace tessera
