#include "checkpoint/huggingface/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(absl::InvalidArgumentError("config.json: " + message));
}

// One JSON object with typed look-ups. A value of another type is an error; a
// missing one, or null, gives the default.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  bool Has(const char* name) const {
    return object_.contains(name) && !object_[name].is_null();
  }
  // Also when it is null.
  bool Contains(const char* name) const { return object_.contains(name); }
  const Json& operator[](const char* name) const { return object_[name]; }

  std::string Text(const char* name, const std::string& fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_string()) Wrong(name, "a string");
    return object_[name].get<std::string>();
  }
  bool Flag(const char* name, bool fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_boolean()) Wrong(name, "true or false");
    return object_[name].get<bool>();
  }
  double Number(const char* name, double fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_number()) Wrong(name, "a number");
    return object_[name].get<double>();
  }
  std::optional<int64_t> Integer(const char* name) const {
    if (!Has(name)) return std::nullopt;
    const double value = Number(name, 0);
    if (value != std::floor(value) || std::abs(value) > 9e15) {
      Wrong(name, "an integer");
    }
    return static_cast<int64_t>(value);
  }
  std::optional<double> Number(const char* name) const {
    if (!Has(name)) return std::nullopt;
    return Number(name, 0);
  }
  std::vector<double> Numbers(const char* name) const {
    if (!Has(name)) return {};
    const Json& list = object_[name];
    const bool numbers =
        list.is_array() &&
        std::all_of(list.begin(), list.end(),
                    [](const Json& x) { return x.is_number(); });
    if (!numbers) Wrong(name, "a list of numbers");
    return list.get<std::vector<double>>();
  }
  int64_t Integer(const char* name, int64_t fallback) const {
    return Integer(name).value_or(fallback);
  }

 private:
  [[noreturn]] void Wrong(const char* name, const char* wanted) const {
    Refuse(absl::StrCat("\"", name, "\" is ", object_[name].dump(),
                        ", but must be ", wanted));
  }
  const Json& object_;
};

GPT2Config ReadGPT2(const Fields& fields) {
  GPT2Config config;
  config.vocab_size = fields.Integer("vocab_size", 50257);
  config.n_positions =
      fields.Integer("n_positions", fields.Integer("n_ctx", 1024));
  config.n_embd = fields.Integer("n_embd", 768);
  config.n_layer = fields.Integer("n_layer", 12);
  config.n_head = fields.Integer("n_head", 12);
  config.n_inner = fields.Integer("n_inner");
  config.activation_function = fields.Text("activation_function", "gelu_new");
  config.resid_pdrop = fields.Number("resid_pdrop", 0.1);
  config.embd_pdrop = fields.Number("embd_pdrop", 0.1);
  config.attn_pdrop = fields.Number("attn_pdrop", 0.1);
  config.layer_norm_epsilon = fields.Number("layer_norm_epsilon", 1e-5);
  config.initializer_range = fields.Number("initializer_range", 0.02);
  config.scale_attn_weights = fields.Flag("scale_attn_weights", true);
  config.scale_attn_by_inverse_layer_idx =
      fields.Flag("scale_attn_by_inverse_layer_idx", false);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", true);
  if (fields.Flag("add_cross_attention", false)) {
    Refuse("\"add_cross_attention\" is not supported");
  }
  CheckConfig(config);
  return config;
}

double Demand(const Fields& fields, const char* name,
              const std::string& message) {
  if (fields.Has(name)) return fields.Number(name, 0);
  Refuse(absl::StrCat(message, name, "\""));
}

// The fields of one type. `message` begins what is said of a missing one.
void ReadScaling(const Fields& fields, const std::string& message,
                 int64_t max_position_embeddings, RopeConfig& rope) {
  const std::string& type = rope.rope_type;
  // Null, and in longrope nothing, is the growth of the length.
  const bool follows =
      type == "longrope" || (type == "yarn" && fields.Contains("factor"));
  if (follows && !fields.Has("factor")) {
    const int64_t original =
        rope.original_max_position_embeddings.value_or(max_position_embeddings);
    rope.factor = static_cast<double>(max_position_embeddings) /
                  static_cast<double>(std::max<int64_t>(original, 1));
  } else if (type != "default") {
    rope.factor = Demand(fields, "factor", message);
  }
  if (type == "llama3") {
    rope.low_freq_factor = Demand(fields, "low_freq_factor", message);
    rope.high_freq_factor = Demand(fields, "high_freq_factor", message);
  } else if (type == "yarn") {
    rope.beta_fast = fields.Number("beta_fast", rope.beta_fast);
    rope.beta_slow = fields.Number("beta_slow", rope.beta_slow);
    rope.truncate = fields.Flag("truncate", rope.truncate);
    rope.mscale = fields.Number("mscale");
    rope.mscale_all_dim = fields.Number("mscale_all_dim");
  } else if (type == "longrope") {
    rope.short_factor = fields.Numbers("short_factor");
    rope.long_factor = fields.Numbers("long_factor");
  }
  if (type == "yarn" || type == "longrope") {
    rope.attention_factor = fields.Number("attention_factor");
  }
}

// rope_scaling (transformers 4) or rope_parameters (5); the base frequency in
// it or beside it.
RopeConfig ReadRope(const Fields& fields, int64_t max_position_embeddings) {
  RopeConfig rope;
  rope.rope_theta = fields.Number("rope_theta", 10000.0);
  const char* name =
      fields.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!fields.Has(name)) return rope;
  const Json& object = fields[name];
  if (!object.is_object()) {
    Refuse(absl::StrCat("\"", name, "\" is ", object.dump(),
                        ", but must be an object"));
  }
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      Refuse(absl::StrCat("\"", name, "\" differs by layer type (\"", key,
                          "\"), which is not supported"));
    }
  }
  const Fields inner(object);
  rope.rope_theta = inner.Number("rope_theta", rope.rope_theta);
  rope.rope_type = inner.Text("rope_type", inner.Text("type", "default"));
  if (inner.Number("partial_rotary_factor",
                   fields.Number("partial_rotary_factor", 1)) != 1) {
    Refuse("\"partial_rotary_factor\" other than 1 is not supported");
  }
  const std::string wanted =
      absl::StrCat("\"", name, "\" of type \"", rope.rope_type, "\" lacks \"");
  const std::string& type = rope.rope_type;
  if (type == "llama3" || type == "yarn" || type == "longrope") {
    // Beside the object, it wins.
    rope.original_max_position_embeddings =
        fields.Has("original_max_position_embeddings")
            ? fields.Integer("original_max_position_embeddings")
            : inner.Integer("original_max_position_embeddings");
  }
  ReadScaling(inner, wanted, max_position_embeddings, rope);
  return rope;
}

// What differs between the families where a field is missing.
struct FamilyDefaults {
  LlamaFamily family;
  int64_t vocab_size;
  int64_t intermediate_size;
  std::optional<int64_t> num_key_value_heads;
  std::optional<int64_t> head_dim;
  int64_t max_position_embeddings;
};

std::optional<FamilyDefaults> DefaultsOf(const std::string& model_type) {
  using enum LlamaFamily;
  if (model_type == "llama") return {{kLlama, 32000, 11008, {}, {}, 2048}};
  if (model_type == "mistral") return {{kMistral, 32000, 14336, 8, {}, 131072}};
  if (model_type == "qwen2") return {{kQwen2, 151936, 22016, 32, {}, 32768}};
  if (model_type == "qwen3") return {{kQwen3, 151936, 22016, 32, 128, 32768}};
  return std::nullopt;
}

// Mistral slides everywhere if it has a window. Qwen slides if told to, from
// max_window_layers on or where layer_types says so.
void ReadWindow(const Fields& fields, LlamaConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  const bool mistral = config.family == LlamaFamily::kMistral;
  if (!mistral && !fields.Flag("use_sliding_window", false)) return;
  // Absent is not null, which is none.
  config.sliding_window = fields.Contains("sliding_window")
                              ? fields.Integer("sliding_window")
                              : 4096;
  if (mistral || !config.sliding_window.has_value()) return;
  const int64_t first = fields.Integer("max_window_layers", 28);
  for (int64_t i = 0; i < layers; ++i) {
    config.layer_slides.push_back(i >= first);
  }
  if (!fields.Has("layer_types")) return;
  config.layer_slides.clear();
  for (const Json& type : fields["layer_types"]) {
    if (type != "full_attention" && type != "sliding_attention") {
      Refuse(absl::StrCat("\"layer_types\" holds ", type.dump(),
                          "; full_attention and sliding_attention are "
                          "supported"));
    }
    config.layer_slides.push_back(type == "sliding_attention");
  }
}

LlamaConfig ReadLlama(const Fields& fields, const FamilyDefaults& defaults) {
  LlamaConfig config;
  config.family = defaults.family;
  config.vocab_size = fields.Integer("vocab_size", defaults.vocab_size);
  config.hidden_size = fields.Integer("hidden_size", 4096);
  config.intermediate_size =
      fields.Integer("intermediate_size", defaults.intermediate_size);
  config.num_hidden_layers = fields.Integer("num_hidden_layers", 32);
  config.num_attention_heads = fields.Integer("num_attention_heads", 32);
  config.num_key_value_heads = fields.Contains("num_key_value_heads")
                                   ? fields.Integer("num_key_value_heads")
                                   : defaults.num_key_value_heads;
  config.head_dim = fields.Contains("head_dim") ? fields.Integer("head_dim")
                                                : defaults.head_dim;
  config.max_position_embeddings = fields.Integer(
      "max_position_embeddings", defaults.max_position_embeddings);
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-6);
  config.rope = ReadRope(fields, config.max_position_embeddings);
  config.attention_bias = fields.Flag("attention_bias", false);
  config.mlp_bias = fields.Flag("mlp_bias", false);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  config.initializer_range = fields.Number("initializer_range", 0.02);
  config.hidden_act = fields.Text("hidden_act", "silu");
  config.attention_dropout = fields.Number("attention_dropout", 0.0);
  CheckConfig(config);  // Also before something is made for each layer.
  if (config.family != LlamaFamily::kLlama) ReadWindow(fields, config);
  CheckConfig(config);
  return config;
}

ModelConfig ReadConfig(const Fields& fields) {
  if (fields.Has("quantization_config")) {
    Refuse(
        "the model is quantized (\"quantization_config\"), which is not "
        "supported; use its unquantized original");
  }
  const std::string type = fields.Text("model_type", "");
  if (type == "gpt2") return ReadGPT2(fields);
  if (const std::optional<FamilyDefaults> defaults = DefaultsOf(type)) {
    return ReadLlama(fields, *defaults);
  }
  Refuse(absl::StrCat("\"model_type\" is \"", type,
                      "\"; supported are gpt2, llama, mistral, qwen2, qwen3"));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text) {
  const absl::StatusOr<Json> json = ParseJsonObject(json_text);
  if (!json.ok()) return Annotate(json.status(), "config.json");
  ModelConfig config;
  RETURN_IF_ERROR(Try([&] { config = ReadConfig(Fields(*json)); }));
  return config;
}

absl::StatusOr<std::shared_ptr<CausalLM>> MakeModel(const ModelConfig& config) {
  std::shared_ptr<CausalLM> model;
  RETURN_IF_ERROR(Try([&] {
    if (const auto* gpt2 = std::get_if<GPT2Config>(&config)) {
      model = std::make_shared<GPT2LMHeadModel>(*gpt2);
    } else {
      model = std::make_shared<LlamaForCausalLM>(std::get<LlamaConfig>(config));
    }
  }));
  return model;
}

}  // namespace tessera
