// The Llama family: Llama 2 and 3, Mistral, Qwen2, Qwen3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/nn/causal_lm.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/module_list.h"
#include "runtime/nn/norm.h"
#include "runtime/nn/rotary.h"

namespace tessera {

enum class LlamaFamily { kLlama, kMistral, kQwen2, kQwen3 };

// Fields are those of config.json. Defaults are those of a Llama; a reader of
// files sets what differs in the other families.
struct LlamaConfig {
  LlamaFamily family = LlamaFamily::kLlama;
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  std::optional<int64_t> num_key_value_heads = {};  // Unset: as many.
  std::optional<int64_t> head_dim = {};  // Unset: hidden_size / heads.
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  RopeConfig rope = {};
  // Qwen2 has biases on q, k and v in any case.
  bool attention_bias = false;
  bool mlp_bias = false;
  double attention_dropout = 0.0;  // Of the weights of attention.
  // Each position sees itself and the sliding_window - 1 before it.
  std::optional<int64_t> sliding_window = {};
  // Layers that slide; empty: all of them, if there is a window.
  std::vector<bool> layer_slides = {};
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::string hidden_act = "silu";

  int64_t key_value_heads() const {
    return num_key_value_heads.value_or(num_attention_heads);
  }
  int64_t dim_of_head() const {
    return head_dim.value_or(hidden_size / num_attention_heads);
  }
  // Of `layer`, or nothing.
  std::optional<int64_t> WindowOf(int64_t layer) const;
};

// Throws naming the field that is wrong or not supported.
void CheckConfig(const LlamaConfig& config);

// "Llama", "Mistral", "Qwen2", "Qwen3": class names begin with it.
std::string FamilyName(LlamaFamily family);

class LlamaAttention : public Module {
 public:
  LlamaAttention(const LlamaConfig& config, int64_t layer);
  // `segment_starts` [B, T], if defined: where documents begin.
  Variable operator()(const Variable& x_BTC,
                      const functions::RopePositions& rope, LayerCache* cache,
                      const Tensor& segment_starts);

 private:
  Variable Heads(const Variable& x_BTC, Linear& projection, RmsNorm* norm,
                 int64_t num_heads);

  const int64_t num_heads_;
  const int64_t num_key_value_heads_;
  const int64_t head_dim_;
  const std::optional<int64_t> window_;
  const double dropout_;
  const std::string name_;
  std::shared_ptr<Linear> q_proj_;
  std::shared_ptr<Linear> k_proj_;
  std::shared_ptr<Linear> v_proj_;
  std::shared_ptr<Linear> o_proj_;
  std::shared_ptr<RmsNorm> q_norm_;  // Qwen3 only, as k_norm.
  std::shared_ptr<RmsNorm> k_norm_;
};

// down_proj(silu(gate_proj(x)) * up_proj(x)).
class LlamaMLP : public Module {
 public:
  explicit LlamaMLP(const LlamaConfig& config);
  Variable operator()(const Variable& x_BTC);

 private:
  std::shared_ptr<Linear> gate_proj_;
  std::shared_ptr<Linear> up_proj_;
  std::shared_ptr<Linear> down_proj_;
};

class LlamaDecoderLayer : public Module {
 public:
  LlamaDecoderLayer(const LlamaConfig& config, int64_t layer);
  Variable operator()(const Variable& x_BTC,
                      const functions::RopePositions& rope,
                      LayerCache* cache = nullptr,
                      const Tensor& segment_starts = {});
  void set_activation_checkpointing(bool enabled) { recompute_ = enabled; }

 private:
  Variable Body(const Variable& x_BTC, const functions::RopePositions& rope,
                LayerCache* cache, const Tensor& segment_starts);

  bool recompute_ = false;
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<LlamaMLP> mlp_;
  std::shared_ptr<RmsNorm> input_layernorm_;
  std::shared_ptr<RmsNorm> post_attention_layernorm_;
};

class LlamaModel : public Module {
 public:
  explicit LlamaModel(const LlamaConfig& config);
  // The hidden states after the last norm, [B, T, C].
  Variable operator()(const ModelInputs& inputs, KeyValueCache* cache);

  const Embedding& embed_tokens() const { return *embed_tokens_; }
  ModuleList<LlamaDecoderLayer>& layers() { return *layers_; }
  int64_t max_positions() const { return rotary_.max_positions(); }

 private:
  RotaryEmbedding rotary_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::shared_ptr<ModuleList<LlamaDecoderLayer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
};

// Parameters "model.embed_tokens.weight",
// "model.layers.0.self_attn.q_proj.weight", ..., "model.norm.weight",
// "lm_head.weight", which is the first of these when tied.
class LlamaForCausalLM : public CausalLM {
 public:
  explicit LlamaForCausalLM(const LlamaConfig& config);

  const LlamaConfig& config() const { return config_; }
  KeyValueCache NewCache(int64_t batch, int64_t capacity) const override;
  std::vector<std::string> NoSplitModules() const override {
    return {FamilyName(config_.family) + "DecoderLayer"};
  }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return model_->max_positions(); }
  void set_activation_checkpointing(bool enabled) override;

 protected:
  Variable Hidden(const ModelInputs& inputs, KeyValueCache* cache) override;
  LanguageModelHead& head() override { return *lm_head_; }
  int64_t attention_width() const override {
    return config_.num_attention_heads * config_.dim_of_head();
  }
  int64_t num_layers() const override { return config_.num_hidden_layers; }
  int64_t num_multiplied_parameters() const override;

 private:
  const LlamaConfig config_;
  std::shared_ptr<LlamaModel> model_;
  std::shared_ptr<LanguageModelHead> lm_head_;
};

}  // namespace tessera
