// Models from the config.json that other people's files come with.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "runtime/nn/causal_lm.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"

namespace tessera {

using ModelConfig = std::variant<GPT2Config, LlamaConfig>;

// From the text of a config.json: model types gpt2, llama, mistral, qwen2 and
// qwen3, as transformers 4 and 5 write them. Fields that are missing have the
// defaults of their model type. Errors name the field, its value and what is
// supported.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);

// A model with parameters on the current device, not initialised.
absl::StatusOr<std::shared_ptr<CausalLM>> MakeModel(const ModelConfig& config);

}  // namespace tessera
