// GPT-2, with the names and the mathematics of the files that are in use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/nn/causal_lm.h"
#include "runtime/nn/dropout.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/module_list.h"
#include "runtime/nn/norm.h"

namespace tessera {

// Fields are those of config.json.
struct GPT2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  std::optional<int64_t> n_inner = {};           // 4 n_embd when unset.
  std::string activation_function = "gelu_new";  // Or "gelu".
  double resid_pdrop = 0.0;
  double embd_pdrop = 0.0;
  double attn_pdrop = 0.0;  // Of the weights of attention.
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;

  int64_t inner() const { return n_inner.value_or(4 * n_embd); }
};

// Throws naming the field that is wrong or not supported.
void CheckConfig(const GPT2Config& config);

class GPT2Attention : public Module {
 public:
  GPT2Attention(const GPT2Config& config, int64_t layer);
  // `segment_starts` [B, T], if defined: where documents begin.
  Variable operator()(const Variable& x_BTC, LayerCache* cache,
                      const Tensor& segment_starts = {});

 private:
  const int64_t num_heads_;
  const double scale_;
  const double attn_pdrop_;
  const std::string name_;
  std::shared_ptr<Conv1D> c_attn_;
  std::shared_ptr<Conv1D> c_proj_;
  std::shared_ptr<Dropout> resid_dropout_;
};

class GPT2MLP : public Module {
 public:
  GPT2MLP(const GPT2Config& config, int64_t layer);
  Variable operator()(const Variable& x_BTC);

 private:
  const std::string activation_;
  std::shared_ptr<Conv1D> c_fc_;
  std::shared_ptr<Conv1D> c_proj_;
  std::shared_ptr<Dropout> dropout_;
};

// x += attn(ln_1(x)); x += mlp(ln_2(x)).
class GPT2Block : public Module {
 public:
  GPT2Block(const GPT2Config& config, int64_t layer);
  Variable operator()(const Variable& x_BTC, LayerCache* cache = nullptr,
                      const Tensor& segment_starts = {});
  void set_activation_checkpointing(bool enabled) { recompute_ = enabled; }

 private:
  Variable Body(const Variable& x_BTC, LayerCache* cache,
                const Tensor& segment_starts);

  bool recompute_ = false;
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<GPT2Attention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<GPT2MLP> mlp_;
};

class GPT2Model : public Module {
 public:
  explicit GPT2Model(const GPT2Config& config);
  // The hidden states after the last norm, [B, T, C].
  Variable operator()(const ModelInputs& inputs, KeyValueCache* cache);

  const Embedding& wte() const { return *wte_; }
  ModuleList<GPT2Block>& blocks() { return *h_; }

 private:
  Variable Positions(const ModelInputs& inputs, int64_t first);

  std::shared_ptr<Embedding> wte_;
  std::shared_ptr<Embedding> wpe_;
  std::shared_ptr<Dropout> drop_;
  std::shared_ptr<ModuleList<GPT2Block>> h_;
  std::shared_ptr<LayerNorm> ln_f_;
};

// Parameters "transformer.wte.weight", "transformer.h.0.ln_1.weight", ...,
// "lm_head.weight", which is the first of these when tied.
class GPT2LMHeadModel : public CausalLM {
 public:
  explicit GPT2LMHeadModel(const GPT2Config& config);

  const GPT2Config& config() const { return config_; }
  KeyValueCache NewCache(int64_t batch, int64_t capacity) const override;
  std::vector<std::string> NoSplitModules() const override {
    return {"GPT2Block"};
  }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.n_positions; }
  void set_activation_checkpointing(bool enabled) override;

 protected:
  Variable Hidden(const ModelInputs& inputs, KeyValueCache* cache) override;
  LanguageModelHead& head() override { return *lm_head_; }
  int64_t attention_width() const override { return config_.n_embd; }
  int64_t num_layers() const override { return config_.n_layer; }
  int64_t num_multiplied_parameters() const override;

 private:
  const GPT2Config config_;
  std::shared_ptr<GPT2Model> transformer_;
  std::shared_ptr<LanguageModelHead> lm_head_;
};

}  // namespace tessera
