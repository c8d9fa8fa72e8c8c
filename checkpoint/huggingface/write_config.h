// The config.json of a model of ours, which others can read too.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/huggingface/model_config.h"

namespace tessera {

// JSON that ParseModelConfig turns into the same config.
std::string SerializeModelConfig(const ModelConfig& config);

// Writes `folder`/config.json, whole or not at all.
absl::Status WriteModelConfig(const std::string& folder,
                              const ModelConfig& config);

}  // namespace tessera
