#include "checkpoint/huggingface/write_config.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace tessera {
namespace {

// Keys stay in the order in which they are set.
using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<int64_t>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json ToJson(const GPT2Config& config) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"n_inner", OrNull(config.n_inner)},
          {"activation_function", config.activation_function},
          {"resid_pdrop", config.resid_pdrop},
          {"embd_pdrop", config.embd_pdrop},
          {"attn_pdrop", config.attn_pdrop},
          {"layer_norm_epsilon", config.layer_norm_epsilon},
          {"initializer_range", config.initializer_range},
          {"scale_attn_weights", config.scale_attn_weights},
          {"scale_attn_by_inverse_layer_idx",
           config.scale_attn_by_inverse_layer_idx},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

const char* ModelType(LlamaFamily family) {
  switch (family) {
    case LlamaFamily::kLlama:
      return "llama";
    case LlamaFamily::kMistral:
      return "mistral";
    case LlamaFamily::kQwen2:
      return "qwen2";
    case LlamaFamily::kQwen3:
      return "qwen3";
  }
  std::abort();
}

void SetIf(Json& json, const char* name, const std::optional<double>& value) {
  if (value.has_value()) json[name] = *value;
}

Json RopeJson(const RopeConfig& rope) {
  const std::string& type = rope.rope_type;
  if (type == "default") return {};
  Json json = {{"rope_type", type}, {"factor", rope.factor}};
  if (type == "linear" || type == "dynamic") return json;
  if (rope.original_max_position_embeddings.has_value()) {
    json["original_max_position_embeddings"] =
        *rope.original_max_position_embeddings;
  }
  SetIf(json, "attention_factor", rope.attention_factor);
  if (type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  } else if (type == "yarn") {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
    SetIf(json, "mscale", rope.mscale);
    SetIf(json, "mscale_all_dim", rope.mscale_all_dim);
  } else if (type == "longrope") {
    json["short_factor"] = rope.short_factor;
    json["long_factor"] = rope.long_factor;
  }
  return json;
}

void AddWindow(const LlamaConfig& config, Json& json) {
  if (config.family == LlamaFamily::kLlama) return;
  json["sliding_window"] = OrNull(config.sliding_window);
  if (config.family == LlamaFamily::kMistral) return;
  json["use_sliding_window"] = config.sliding_window.has_value();
  if (!config.sliding_window.has_value()) return;
  json["layer_types"] = Json::array();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    json["layer_types"].push_back(config.WindowOf(i).has_value()
                                      ? "sliding_attention"
                                      : "full_attention");
  }
}

Json ToJson(const LlamaConfig& config) {
  Json json = {{"model_type", ModelType(config.family)},
               {"architectures", {FamilyName(config.family) + "ForCausalLM"}},
               {"vocab_size", config.vocab_size},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.key_value_heads()},
               {"head_dim", config.dim_of_head()},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", config.rms_norm_eps},
               {"rope_theta", config.rope.rope_theta},
               {"rope_scaling", RopeJson(config.rope)},
               {"attention_bias", config.attention_bias},
               {"attention_dropout", config.attention_dropout},
               {"mlp_bias", config.mlp_bias},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"initializer_range", config.initializer_range},
               {"hidden_act", config.hidden_act}};
  AddWindow(config, json);
  return json;
}

}  // namespace

std::string SerializeModelConfig(const ModelConfig& config) {
  const Json json = std::visit([](const auto& c) { return ToJson(c); }, config);
  return json.dump(2) + "\n";
}

}  // namespace tessera
