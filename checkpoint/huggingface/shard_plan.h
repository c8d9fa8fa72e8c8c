// Which tensors go to which file when a model is written in several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/safetensors_writer.h"

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

// "model.safetensors", or "model-00002-of-00003.safetensors" of several;
// `index` counts from 0. With a tag: "model-TAG-00002-of-00003.safetensors".
std::string ShardFileName(size_t index, size_t num_files,
                          const std::string& tag = "");

// Whether a file of a folder is called as ShardFileName names files, or is
// their index.
bool IsShardFileName(const std::string& name);

}  // namespace tessera
