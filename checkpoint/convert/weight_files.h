// Weights in whatever format they are: found by looking at the files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/model_config.h"
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
  // Of llm.c and of our checkpoints, which have it in themselves; nothing where
  // it is in a file beside the weights, or nowhere.
  std::optional<ModelConfig> config = {};
};

// A folder of Hugging Face, of torch's distributed checkpoints or of ours, a
// safetensors file, a file of torch.save, or a GPT-2 of llm.c: see KindOfPath.
// A checkpoint of a run that trained an adapter is the model with it.
// A folder that only has such folders in it is an error that names them.
absl::StatusOr<OpenedWeights> OpenWeights(const std::string& path);

}  // namespace tessera
