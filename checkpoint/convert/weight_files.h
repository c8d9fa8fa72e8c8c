// Weights in whatever format they are: found by looking at the files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

enum class WeightFormat { kSafetensors, kTorch, kDistributed, kNative, kLlmc };

// "safetensors", "bin", "torch", "native", "llmc".
const char* WeightFormatName(WeightFormat format);
// kInvalidArgument for another name; the error lists them.
absl::StatusOr<WeightFormat> ParseWeightFormat(const std::string& name);

struct OpenedWeights {
  WeightFormat format = WeightFormat::kSafetensors;
  std::unique_ptr<WeightSource> source;
  std::vector<std::string> warnings;
  int num_heads = 0;  // Of an llm.c file; 0: the format does not say.
};

// A folder of Hugging Face, of torch's distributed checkpoints or of ours, a
// safetensors file, a file of torch.save, or a GPT-2 of llm.c. A folder that
// only has such folders in it is an error that names them.
absl::StatusOr<OpenedWeights> OpenWeights(const std::string& path);

// The folders just inside `path` that OpenWeights would take, for errors:
// "; did you mean PATH/pytorch_model_fsdp_0?", or nothing.
std::string NestedCheckpointHint(const std::string& path);

}  // namespace tessera
