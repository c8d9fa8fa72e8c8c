// Which tensors go to which file when a model is written in several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_spec.h"

namespace tessera {

inline constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

struct ShardFile {
  std::vector<TensorSpec> tensors;
  int64_t num_bytes = 0;
};

// Deals out tensors in their order: a file is full when the next tensor would
// make it larger than `max_bytes`. A tensor that is larger alone gets a file of
// its own at once, while the open file stays open. At least one file.
std::vector<ShardFile> SplitIntoShards(const std::vector<TensorSpec>& tensors,
                                       int64_t max_bytes);

// "5GB", "1.5MB", "40kb", "2TB" (decimal units), or a number of bytes.
absl::StatusOr<int64_t> ParseShardSize(const std::string& text);

}  // namespace tessera
