// Weights from any source to files of any format, tensor by tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/weight_source.h"

namespace tessera {

struct CopyOptions {
  std::optional<DType> dtype = {};  // Of floating tensors; unset: the source's.
  int64_t max_shard_bytes = kDefaultMaxShardBytes;
  // Of safetensors and .bin, the weights of the other one go, too.
  bool replace_other_format = false;
  int num_heads = 0;  // For llm.c, where `texts` have no config.json.
  // Beside safetensors and .bin: config.json and others, by name; a config says
  // `dtype` where that is set. llm.c takes its heads from config.json, and one
  // that llm.c computes differently is an error; our checkpoints keep it as
  // their model.
  std::map<std::string, std::string> texts = {};
  // Called after each tensor with the bytes so far and in all.
  std::function<void(int64_t, int64_t)> progress = {};
};

// Writes all of `source` to `path`: a file for llm.c, else a folder, which
// replaces the weights that it holds in this format. Memory is two copies of
// the largest tensor, whose second one is the cast. A new folder appears when
// all of it is written, and what a killed process left beside it goes. Elements
// of an opaque type are copied as they are, where the format has it.
// kUnimplemented for another element type that tessera lacks, before anything
// is created.
absl::Status CopyWeights(const WeightSource& source, WeightFormat format,
                         const std::string& path, const CopyOptions& options);

// OK when both have the same names, types, shapes and bits.
// `compared`, if given, is called for each tensor with its bytes.
absl::Status CompareWeights(
    const WeightSource& a, const WeightSource& b,
    const std::function<void(int64_t num_bytes)>& compared = {});

}  // namespace tessera
