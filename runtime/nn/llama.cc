#include "runtime/nn/llama.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/recompute.h"
#include "runtime/functions/attention.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/rope.h"
#include "runtime/functions/views.h"

namespace tessera {
namespace {

void Require(bool condition, const std::string& message) {
  if (condition) return;
  throw Error(absl::InvalidArgumentError("LlamaConfig: " + message));
}

std::shared_ptr<Linear> Projection(const LlamaConfig& config, int64_t in,
                                   int64_t out, bool bias) {
  return std::make_shared<Linear>(
      in, out,
      LinearOptions{.bias = bias, .init_stddev = config.initializer_range});
}

std::string ClassName(const LlamaConfig& config, const std::string& suffix) {
  return FamilyName(config.family) + suffix;
}

}  // namespace

std::optional<int64_t> LlamaConfig::WindowOf(int64_t layer) const {
  if (!layer_slides.empty() && !layer_slides[layer]) return std::nullopt;
  return sliding_window;
}

std::string FamilyName(LlamaFamily family) {
  switch (family) {
    case LlamaFamily::kLlama:
      return "Llama";
    case LlamaFamily::kMistral:
      return "Mistral";
    case LlamaFamily::kQwen2:
      return "Qwen2";
    case LlamaFamily::kQwen3:
      return "Qwen3";
  }
  return "";
}

namespace {

void CheckSizes(const LlamaConfig& config) {
  for (const auto& [name, value] : {
           std::pair<const char*, int64_t>{"vocab_size", config.vocab_size},
           {"hidden_size", config.hidden_size},
           {"intermediate_size", config.intermediate_size},
           {"num_hidden_layers", config.num_hidden_layers},
           {"num_attention_heads", config.num_attention_heads},
           {"num_key_value_heads", config.key_value_heads()},
           {"head_dim", config.head_dim.value_or(1)},
           {"max_position_embeddings", config.max_position_embeddings},
           {"sliding_window", config.sliding_window.value_or(1)},
       }) {
    Require(value > 0, absl::StrCat(name, " is ", value, ", not positive"));
    Require(
        value <= kLargestModelSize,
        absl::StrCat(name, " is ", value, ", more than ", kLargestModelSize));
  }
  Require(config.num_hidden_layers <= kMostBlocks,
          absl::StrCat("num_hidden_layers is ", config.num_hidden_layers,
                       ", more than ", kMostBlocks));
}

}  // namespace

void CheckConfig(const LlamaConfig& config) {
  CheckSizes(config);
  Require(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps >= 0,
          absl::StrCat("rms_norm_eps is ", config.rms_norm_eps,
                       ", wanted 0 or more"));
  Require(config.head_dim.has_value() ||
              config.hidden_size % config.num_attention_heads == 0,
          absl::StrCat("hidden_size ", config.hidden_size,
                       " is no multiple of num_attention_heads ",
                       config.num_attention_heads,
                       "; give head_dim if that is meant"));
  Require(config.num_attention_heads % config.key_value_heads() == 0,
          absl::StrCat("num_attention_heads ", config.num_attention_heads,
                       " is no multiple of num_key_value_heads ",
                       config.key_value_heads()));
  Require(config.dim_of_head() % 2 == 0,
          absl::StrCat("head_dim ", config.dim_of_head(), " is not even"));
  Require(config.hidden_act == "silu" || config.hidden_act == "swish",
          absl::StrCat("hidden_act \"", config.hidden_act,
                       "\" is not supported; silu is"));
  Require(
      config.layer_slides.empty() ||
          static_cast<int64_t>(config.layer_slides.size()) ==
              config.num_hidden_layers,
      absl::StrCat("layer_types lists ", config.layer_slides.size(),
                   " layers, num_hidden_layers is ", config.num_hidden_layers));
  Require(config.attention_dropout >= 0.0 && config.attention_dropout < 1.0,
          absl::StrCat("attention_dropout is ", config.attention_dropout,
                       ", not in [0, 1)"));
  RopeScaling(config.rope, config.dim_of_head(),
              config.max_position_embeddings);
}

LlamaAttention::LlamaAttention(const LlamaConfig& config, int64_t layer)
    : Module(ClassName(config, "Attention")),
      num_heads_(config.num_attention_heads),
      num_key_value_heads_(config.key_value_heads()),
      head_dim_(config.dim_of_head()),
      window_(config.WindowOf(layer)),
      dropout_(config.attention_dropout),
      name_(absl::StrCat("model.layers.", layer, ".self_attn")) {
  const int64_t width = num_heads_ * head_dim_;
  const int64_t kv_width = num_key_value_heads_ * head_dim_;
  const bool qwen2 = config.family == LlamaFamily::kQwen2;
  const bool bias = config.attention_bias || qwen2;
  q_proj_ = RegisterModule("q_proj",
                           Projection(config, config.hidden_size, width, bias));
  k_proj_ = RegisterModule(
      "k_proj", Projection(config, config.hidden_size, kv_width, bias));
  v_proj_ = RegisterModule(
      "v_proj", Projection(config, config.hidden_size, kv_width, bias));
  o_proj_ =
      RegisterModule("o_proj", Projection(config, width, config.hidden_size,
                                          config.attention_bias && !qwen2));
  if (config.family != LlamaFamily::kQwen3) return;
  const double eps = config.rms_norm_eps;
  q_norm_ = RegisterModule("q_norm", std::make_shared<RmsNorm>(head_dim_, eps));
  k_norm_ = RegisterModule("k_norm", std::make_shared<RmsNorm>(head_dim_, eps));
}

// [B, T, heads, head dim], normed where there is a norm.
Variable LlamaAttention::Heads(const Variable& x_BTC, Linear& projection,
                               RmsNorm* norm, int64_t num_heads) {
  const Variable heads = functions::Reshape(
      projection(x_BTC), {x_BTC.size(0), x_BTC.size(1), num_heads, head_dim_});
  return norm == nullptr ? heads : (*norm)(heads);
}

Variable LlamaAttention::operator()(const Variable& x_BTC,
                                    const functions::RopePositions& rope,
                                    LayerCache* cache,
                                    const Tensor& segment_starts) {
  return Call(
      [&, this](const Variable& x) {
        const Variable q = functions::Rope(
            Heads(x, *q_proj_, q_norm_.get(), num_heads_), rope);
        Variable k = functions::Rope(
            Heads(x, *k_proj_, k_norm_.get(), num_key_value_heads_), rope);
        Variable v = Heads(x, *v_proj_, nullptr, num_key_value_heads_);
        if (cache != nullptr) {
          const KeysAndValues all = Extend(*cache, {k.data(), v.data()});
          k = Variable(all.keys_BTHD);
          v = Variable(all.values_BTHD);
        }
        const Variable y =
            functions::Attention(q, k, v,
                                 {.causal = true,
                                  .sliding_window = window_.value_or(0),
                                  .dropout = functions::NextAttentionDropout(
                                      training() ? dropout_ : 0.0, name_),
                                  .segment_starts = segment_starts});
        return (*o_proj_)(functions::Reshape(
            y, {x.size(0), x.size(1), num_heads_ * head_dim_}));
      },
      x_BTC);
}

LlamaMLP::LlamaMLP(const LlamaConfig& config)
    : Module(ClassName(config, "MLP")) {
  const int64_t width = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  gate_proj_ = RegisterModule(
      "gate_proj", Projection(config, width, inner, config.mlp_bias));
  up_proj_ = RegisterModule("up_proj",
                            Projection(config, width, inner, config.mlp_bias));
  down_proj_ = RegisterModule(
      "down_proj", Projection(config, inner, width, config.mlp_bias));
}

Variable LlamaMLP::operator()(const Variable& x_BTC) {
  return Call(
      [this](const Variable& x) {
        return (*down_proj_)(
            functions::SwiGlu((*gate_proj_)(x), (*up_proj_)(x)));
      },
      x_BTC);
}

LlamaDecoderLayer::LlamaDecoderLayer(const LlamaConfig& config, int64_t layer)
    : Module(ClassName(config, "DecoderLayer")) {
  const int64_t width = config.hidden_size;
  const double eps = config.rms_norm_eps;
  self_attn_ = RegisterModule("self_attn",
                              std::make_shared<LlamaAttention>(config, layer));
  mlp_ = RegisterModule("mlp", std::make_shared<LlamaMLP>(config));
  input_layernorm_ =
      RegisterModule("input_layernorm", std::make_shared<RmsNorm>(width, eps));
  post_attention_layernorm_ = RegisterModule(
      "post_attention_layernorm", std::make_shared<RmsNorm>(width, eps));
}

Variable LlamaDecoderLayer::Body(const Variable& x_BTC,
                                 const functions::RopePositions& rope,
                                 LayerCache* cache,
                                 const Tensor& segment_starts) {
  const Variable x = functions::Add(
      x_BTC,
      (*self_attn_)((*input_layernorm_)(x_BTC), rope, cache, segment_starts));
  return functions::Add(x, (*mlp_)((*post_attention_layernorm_)(x)));
}

Variable LlamaDecoderLayer::operator()(const Variable& x_BTC,
                                       const functions::RopePositions& rope,
                                       LayerCache* cache,
                                       const Tensor& segment_starts) {
  return Call(
      [&, this](const Variable& x) {
        if (!recompute_ || cache != nullptr) {
          return Body(x, rope, cache, segment_starts);
        }
        return Recompute(
            [this, rope, segment_starts](const Variable& input) {
              return Body(input, rope, nullptr, segment_starts);
            },
            x);
      },
      x_BTC);
}

LlamaModel::LlamaModel(const LlamaConfig& config)
    : Module(ClassName(config, "Model")),
      rotary_(config.rope, config.dim_of_head(),
              config.max_position_embeddings) {
  embed_tokens_ = RegisterModule(
      "embed_tokens",
      std::make_shared<Embedding>(config.vocab_size, config.hidden_size,
                                  config.initializer_range));
  layers_ = RegisterModule("layers",
                           std::make_shared<ModuleList<LlamaDecoderLayer>>());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_->Append(std::make_shared<LlamaDecoderLayer>(config, i));
  }
  norm_ = RegisterModule("norm", std::make_shared<RmsNorm>(
                                     config.hidden_size, config.rms_norm_eps));
}

Variable LlamaModel::operator()(const ModelInputs& inputs,
                                KeyValueCache* cache) {
  return Call([&, this] {
    const int64_t first = cache == nullptr ? 0 : cache->length;
    Variable x = (*embed_tokens_)(inputs.ids_BT);
    functions::RopePositions rope =
        rotary_.Positions(first, inputs.ids_BT.size(1), x.device());
    rope.ids = inputs.position_ids_BT;
    for (int64_t i = 0; i < layers_->size(); ++i) {
      x = (*layers_)[i](x, rope, cache == nullptr ? nullptr : &cache->layers[i],
                        inputs.segment_starts_BT);
    }
    return (*norm_)(x);
  });
}

LlamaForCausalLM::LlamaForCausalLM(const LlamaConfig& config)
    : CausalLM(ClassName(config, "ForCausalLM")), config_(config) {
  CheckConfig(config);
  model_ = RegisterModule("model", std::make_shared<LlamaModel>(config));
  lm_head_ = RegisterModule(
      "lm_head",
      config.tie_word_embeddings
          ? std::make_shared<LanguageModelHead>(model_->embed_tokens().weight())
          : std::make_shared<LanguageModelHead>(config.hidden_size,
                                                config.vocab_size,
                                                config.initializer_range));
}

Variable LlamaForCausalLM::Hidden(const ModelInputs& inputs,
                                  KeyValueCache* cache) {
  return (*model_)(inputs, cache);
}

KeyValueCache LlamaForCausalLM::NewCache(int64_t batch,
                                         int64_t capacity) const {
  const Variable& weight = model_->embed_tokens().weight();
  return MakeCache({.num_layers = config_.num_hidden_layers,
                    .batch = batch,
                    .capacity = capacity,
                    .num_heads = config_.key_value_heads(),
                    .head_dim = config_.dim_of_head()},
                   {weight.dtype(), weight.device()});
}

void LlamaForCausalLM::set_activation_checkpointing(bool enabled) {
  for (const auto& layer : model_->layers()) {
    layer->set_activation_checkpointing(enabled);
  }
}

int64_t LlamaForCausalLM::num_multiplied_parameters() const {
  const int64_t width = config_.hidden_size;
  const int64_t heads =
      2 * config_.num_attention_heads + 2 * config_.key_value_heads();
  const int64_t layer = width * heads * config_.dim_of_head() +
                        3 * width * config_.intermediate_size;
  return config_.num_hidden_layers * layer + config_.vocab_size * width;
}

}  // namespace tessera
