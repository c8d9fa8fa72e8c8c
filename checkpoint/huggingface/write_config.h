// The config.json of a model of ours, which others can read too.
#pragma once

#include <string>

#include "checkpoint/huggingface/model_config.h"

namespace tessera {

// JSON that ParseModelConfig turns into the same config.
std::string SerializeModelConfig(const ModelConfig& config);

}  // namespace tessera
