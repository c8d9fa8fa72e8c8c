#include "runtime/nn/gpt2.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/recompute.h"
#include "runtime/functions/attention.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/views.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

void Require(bool condition, const std::string& message) {
  if (condition) return;
  throw Error(absl::InvalidArgumentError("GPT2Config: " + message));
}

// Of the two projections of each block that end in the residual stream.
double ResidualStddev(const GPT2Config& config) {
  return config.initializer_range /
         std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

std::string BlockName(int64_t layer) {
  return absl::StrCat("transformer.h.", layer);
}

functions::GeluKind KindOf(const std::string& activation) {
  return activation == "gelu" ? functions::GeluKind::kErf
                              : functions::GeluKind::kTanh;
}

}  // namespace

void CheckConfig(const GPT2Config& config) {
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"vocab_size", config.vocab_size},
        {"n_positions", config.n_positions},
        {"n_embd", config.n_embd},
        {"n_layer", config.n_layer},
        {"n_head", config.n_head},
        {"n_inner", config.inner()}}) {
    Require(value > 0, absl::StrCat(name, " is ", value, ", not positive"));
    Require(
        value <= kLargestModelSize,
        absl::StrCat(name, " is ", value, ", more than ", kLargestModelSize));
  }
  Require(
      config.n_layer <= kMostBlocks,
      absl::StrCat("n_layer is ", config.n_layer, ", more than ", kMostBlocks));
  Require(config.n_embd % config.n_head == 0,
          absl::StrCat("n_embd ", config.n_embd, " is no multiple of n_head ",
                       config.n_head));
  const std::string& activation = config.activation_function;
  Require(activation == "gelu_new" || activation == "gelu_pytorch_tanh" ||
              activation == "gelu",
          absl::StrCat("activation_function \"", activation,
                       "\" is not supported; gelu_new, gelu_pytorch_tanh and "
                       "gelu are"));
  Require(std::isfinite(config.layer_norm_epsilon) &&
              config.layer_norm_epsilon >= 0,
          absl::StrCat("layer_norm_epsilon is ", config.layer_norm_epsilon,
                       ", wanted 0 or more"));
  Require(config.attn_pdrop >= 0.0 && config.attn_pdrop < 1.0,
          absl::StrCat("attn_pdrop is ", config.attn_pdrop, ", not in [0, 1)"));
}

GPT2Attention::GPT2Attention(const GPT2Config& config, int64_t layer)
    : Module("GPT2Attention"),
      num_heads_(config.n_head),
      scale_((config.scale_attn_weights
                  ? 1.0 / std::sqrt(static_cast<double>(config.n_embd) /
                                    static_cast<double>(config.n_head))
                  : 1.0) /
             (config.scale_attn_by_inverse_layer_idx
                  ? static_cast<double>(layer + 1)
                  : 1.0)),
      attn_pdrop_(config.attn_pdrop),
      name_(BlockName(layer) + ".attn") {
  c_attn_ = RegisterModule(
      "c_attn", std::make_shared<Conv1D>(config.n_embd, 3 * config.n_embd,
                                         config.initializer_range));
  c_proj_ = RegisterModule(
      "c_proj", std::make_shared<Conv1D>(config.n_embd, config.n_embd,
                                         ResidualStddev(config)));
  resid_dropout_ = RegisterModule(
      "resid_dropout",
      std::make_shared<Dropout>(config.resid_pdrop, name_ + ".resid_dropout"));
}

Variable GPT2Attention::operator()(const Variable& x_BTC, LayerCache* cache,
                                   const Tensor& segment_starts) {
  return Call(
      [&, this](const Variable& x) {
        const int64_t batch = x.size(0);
        const int64_t length = x.size(1);
        const int64_t width = x.size(2);
        const Variable qkv = functions::Reshape(
            (*c_attn_)(x), {batch, length, 3, num_heads_, width / num_heads_});
        std::vector<Variable> parts =
            functions::Split(qkv, {1, 1, 1}, /*dim=*/2);
        for (Variable& part : parts) part = functions::Squeeze(part, 2);
        if (cache != nullptr) {
          const KeysAndValues all =
              Extend(*cache, {parts[1].data(), parts[2].data()});
          parts[1] = Variable(all.keys_BTHD);
          parts[2] = Variable(all.values_BTHD);
        }
        const Variable y = functions::Attention(
            parts[0], parts[1], parts[2],
            {.causal = true,
             .scale = scale_,
             .dropout = functions::NextAttentionDropout(
                 training() ? attn_pdrop_ : 0.0, name_ + ".attn_dropout"),
             .segment_starts = segment_starts});
        const Variable joined = functions::Reshape(y, {batch, length, width});
        return (*resid_dropout_)((*c_proj_)(joined));
      },
      x_BTC);
}

GPT2MLP::GPT2MLP(const GPT2Config& config, int64_t layer)
    : Module("GPT2MLP"), activation_(config.activation_function) {
  c_fc_ = RegisterModule("c_fc",
                         std::make_shared<Conv1D>(config.n_embd, config.inner(),
                                                  config.initializer_range));
  c_proj_ = RegisterModule(
      "c_proj", std::make_shared<Conv1D>(config.inner(), config.n_embd,
                                         ResidualStddev(config)));
  dropout_ = RegisterModule(
      "dropout",
      std::make_shared<Dropout>(
          config.resid_pdrop, absl::StrCat(BlockName(layer), ".mlp.dropout")));
}

Variable GPT2MLP::operator()(const Variable& x_BTC) {
  return Call(
      [this](const Variable& x) {
        const Variable inner =
            functions::Gelu((*c_fc_)(x), KindOf(activation_));
        return (*dropout_)((*c_proj_)(inner));
      },
      x_BTC);
}

GPT2Block::GPT2Block(const GPT2Config& config, int64_t layer)
    : Module("GPT2Block") {
  const double eps = config.layer_norm_epsilon;
  ln_1_ =
      RegisterModule("ln_1", std::make_shared<LayerNorm>(config.n_embd, eps));
  attn_ =
      RegisterModule("attn", std::make_shared<GPT2Attention>(config, layer));
  ln_2_ =
      RegisterModule("ln_2", std::make_shared<LayerNorm>(config.n_embd, eps));
  mlp_ = RegisterModule("mlp", std::make_shared<GPT2MLP>(config, layer));
}

Variable GPT2Block::Body(const Variable& x_BTC, LayerCache* cache,
                         const Tensor& segment_starts) {
  const Variable x =
      functions::Add(x_BTC, (*attn_)((*ln_1_)(x_BTC), cache, segment_starts));
  return functions::Add(x, (*mlp_)((*ln_2_)(x)));
}

Variable GPT2Block::operator()(const Variable& x_BTC, LayerCache* cache,
                               const Tensor& segment_starts) {
  return Call(
      [&, this](const Variable& x) {
        if (!recompute_ || cache != nullptr) {
          return Body(x, cache, segment_starts);
        }
        return Recompute(
            [this, segment_starts](const Variable& input) {
              return Body(input, nullptr, segment_starts);
            },
            x);
      },
      x_BTC);
}

GPT2Model::GPT2Model(const GPT2Config& config) : Module("GPT2Model") {
  const double stddev = config.initializer_range;
  wte_ = RegisterModule("wte", std::make_shared<Embedding>(
                                   config.vocab_size, config.n_embd, stddev));
  wpe_ = RegisterModule("wpe", std::make_shared<Embedding>(
                                   config.n_positions, config.n_embd, stddev));
  drop_ = RegisterModule(
      "drop", std::make_shared<Dropout>(config.embd_pdrop, "transformer.drop"));
  h_ = RegisterModule("h", std::make_shared<ModuleList<GPT2Block>>());
  for (int64_t i = 0; i < config.n_layer; ++i) {
    h_->Append(std::make_shared<GPT2Block>(config, i));
  }
  ln_f_ = RegisterModule("ln_f", std::make_shared<LayerNorm>(
                                     config.n_embd, config.layer_norm_epsilon));
}

// [T, C], or [B, T, C] where rows have positions of their own.
Variable GPT2Model::Positions(const ModelInputs& inputs, int64_t first) {
  if (inputs.position_ids_BT.defined()) return (*wpe_)(inputs.position_ids_BT);
  const int64_t length = inputs.ids_BT.size(1);
  return (*wpe_)(
      ops::Arange(first + length, {DType::kInt64, inputs.ids_BT.device()})
          .Narrow(0, first, length));
}

Variable GPT2Model::operator()(const ModelInputs& inputs,
                               KeyValueCache* cache) {
  return Call([&, this] {
    const int64_t first = cache == nullptr ? 0 : cache->length;
    const Variable tokens = (*wte_)(inputs.ids_BT);
    Variable x = (*drop_)(functions::Add(tokens, Positions(inputs, first)));
    for (int64_t i = 0; i < h_->size(); ++i) {
      x = (*h_)[i](x, cache == nullptr ? nullptr : &cache->layers[i],
                   inputs.segment_starts_BT);
    }
    return (*ln_f_)(x);
  });
}

GPT2LMHeadModel::GPT2LMHeadModel(const GPT2Config& config)
    : CausalLM("GPT2LMHeadModel"), config_(config) {
  CheckConfig(config);
  transformer_ =
      RegisterModule("transformer", std::make_shared<GPT2Model>(config));
  lm_head_ = RegisterModule(
      "lm_head",
      config.tie_word_embeddings
          ? std::make_shared<LanguageModelHead>(transformer_->wte().weight())
          : std::make_shared<LanguageModelHead>(
                config.n_embd, config.vocab_size, config.initializer_range));
}

Variable GPT2LMHeadModel::Hidden(const ModelInputs& inputs,
                                 KeyValueCache* cache) {
  return (*transformer_)(inputs, cache);
}

KeyValueCache GPT2LMHeadModel::NewCache(int64_t batch, int64_t capacity) const {
  const Variable& weight = transformer_->wte().weight();
  return MakeCache({.num_layers = config_.n_layer,
                    .batch = batch,
                    .capacity = capacity,
                    .num_heads = config_.n_head,
                    .head_dim = config_.n_embd / config_.n_head},
                   {weight.dtype(), weight.device()});
}

void GPT2LMHeadModel::set_activation_checkpointing(bool enabled) {
  for (const auto& block : transformer_->blocks()) {
    block->set_activation_checkpointing(enabled);
  }
}

int64_t GPT2LMHeadModel::num_multiplied_parameters() const {
  const int64_t width = config_.n_embd;
  const int64_t block = 4 * width * width + 2 * width * config_.inner();
  return config_.n_layer * block + config_.vocab_size * width;
}

}  // namespace tessera
