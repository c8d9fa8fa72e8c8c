#include "checkpoint/convert/llmc_config.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/model_config.h"
#include "kernels/status.h"

namespace tessera {
namespace {

absl::Status Refuse(const std::string& option, const std::string& wanted,
                    const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("llm.c: config.json: ", option, ": llm.c computes with ",
                   wanted, " only, the model wants ", got));
}

const char* Word(bool value) { return value ? "true" : "false"; }

}  // namespace

GPT2Config ConfigOfLlmc(const LlmcConfig& config) {
  GPT2Config result;
  result.vocab_size = config.vocab_size;
  result.n_positions = config.n_positions;
  result.n_embd = config.n_embd;
  result.n_layer = config.n_layer;
  result.n_head = config.n_head;
  return result;
}

absl::StatusOr<int> HeadsForLlmc(const std::string& config_json) {
  const absl::StatusOr<ModelConfig> parsed = ParseModelConfig(config_json);
  if (!parsed.ok()) return Annotate(parsed.status(), "llm.c");
  const auto* const config = std::get_if<GPT2Config>(&*parsed);
  if (config == nullptr) return Refuse("model_type", "gpt2", "another");
  const GPT2Config plain;
  if (config->activation_function == "gelu") {
    return Refuse("activation_function", "gelu_new",
                  config->activation_function);
  }
  if (config->layer_norm_epsilon != plain.layer_norm_epsilon) {
    return Refuse("layer_norm_epsilon", absl::StrCat(plain.layer_norm_epsilon),
                  absl::StrCat(config->layer_norm_epsilon));
  }
  if (!config->scale_attn_weights || config->scale_attn_by_inverse_layer_idx) {
    return config->scale_attn_weights
               ? Refuse("scale_attn_by_inverse_layer_idx", Word(false),
                        Word(true))
               : Refuse("scale_attn_weights", Word(true), Word(false));
  }
  if (config->inner() != 4 * config->n_embd) {
    return Refuse("n_inner", "4 n_embd", absl::StrCat(config->inner()));
  }
  return static_cast<int>(config->n_head);
}

}  // namespace tessera
