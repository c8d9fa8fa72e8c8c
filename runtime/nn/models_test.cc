// GPT-2 and the Llama family: names, start values, losses, caches and
// recomputation. Their mathematics is compared with other people's in
// tests/numerics.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/autograd/random_context.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kVocab = 23;

GPT2Config TinyGPT2() {
  return {.vocab_size = kVocab,
          .n_positions = 16,
          .n_embd = 8,
          .n_layer = 2,
          .n_head = 2};
}

LlamaConfig TinyLlama(LlamaFamily family) {
  LlamaConfig config;
  config.family = family;
  config.vocab_size = kVocab;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  if (family == LlamaFamily::kMistral) config.sliding_window = 3;
  return config;
}

std::vector<std::shared_ptr<CausalLM>> AllModels() {
  std::vector<std::shared_ptr<CausalLM>> models = {
      std::make_shared<GPT2LMHeadModel>(TinyGPT2())};
  for (LlamaFamily family : {LlamaFamily::kLlama, LlamaFamily::kMistral,
                             LlamaFamily::kQwen2, LlamaFamily::kQwen3}) {
    models.push_back(std::make_shared<LlamaForCausalLM>(TinyLlama(family)));
  }
  for (const auto& model : models) InitializeParameters(*model, 1);
  return models;
}

Tensor Ids(int64_t batch, int64_t length, uint64_t seed = 7) {
  std::vector<int64_t> ids;
  for (double id : RandomIntegers(batch * length, seed, 0, kVocab - 1)) {
    ids.push_back(static_cast<int64_t>(id));
  }
  return Tensor::FromVector(ids, {batch, length});
}

std::vector<std::string> NamesOf(const Module& model) {
  std::vector<std::string> names;
  for (const NamedVariable& p : model.NamedParameters())
    names.push_back(p.name);
  return names;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::vector<double>> GradientsOf(CausalLM& model) {
  std::vector<std::vector<double>> grads;
  for (const NamedVariable& p : model.NamedParameters()) {
    EXPECT_TRUE(p.variable.grad().defined()) << p.name;
    grads.push_back(p.variable.grad().ToDoubles());
  }
  return grads;
}

TEST(ModelsTest, GPT2Names) {
  GPT2LMHeadModel model(TinyGPT2());
  const std::vector<std::string> names = NamesOf(model);
  EXPECT_EQ(names.size(), 2 + 2 * 12 + 2u);  // The tied head is not listed.
  for (const char* name :
       {"transformer.wte.weight", "transformer.wpe.weight",
        "transformer.h.0.ln_1.weight", "transformer.h.1.attn.c_attn.weight",
        "transformer.h.1.attn.c_proj.bias", "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_proj.weight", "transformer.ln_f.bias"}) {
    EXPECT_TRUE(Contains(names, name)) << name;
  }
  EXPECT_EQ(model.NamedParameters(true).back().name, "lm_head.weight");
  EXPECT_EQ(model.NamedParameters()[4].variable.shape(), (Shape{8, 24}));
}

TEST(ModelsTest, LlamaFamilyNames) {
  const auto names = [](LlamaFamily family) {
    return NamesOf(LlamaForCausalLM(TinyLlama(family)));
  };
  const std::vector<std::string> llama = names(LlamaFamily::kLlama);
  EXPECT_EQ(llama.size(), 1 + 2 * 9 + 2u);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
        "lm_head.weight"}) {
    EXPECT_TRUE(Contains(llama, name)) << name;
  }
  EXPECT_EQ(names(LlamaFamily::kMistral), llama);
  const std::vector<std::string> qwen2 = names(LlamaFamily::kQwen2);
  EXPECT_TRUE(Contains(qwen2, "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_FALSE(Contains(qwen2, "model.layers.0.self_attn.o_proj.bias"));
  const std::vector<std::string> qwen3 = names(LlamaFamily::kQwen3);
  EXPECT_TRUE(Contains(qwen3, "model.layers.1.self_attn.q_norm.weight"));
  EXPECT_FALSE(Contains(qwen3, "model.layers.0.self_attn.q_proj.bias"));
}

TEST(ModelsTest, ClassNames) {
  for (const auto& model : AllModels()) {
    int blocks = 0;
    for (const NamedModule& m : model->NamedModules()) {
      if (m.module->class_name() == model->NoSplitModules()[0]) ++blocks;
    }
    EXPECT_EQ(blocks, 2) << model->class_name();
  }
  EXPECT_EQ(AllModels()[3]->NoSplitModules()[0], "Qwen2DecoderLayer");
}

TEST(ModelsTest, StartValues) {
  GPT2Config config = TinyGPT2();
  config.n_embd = 64;
  config.n_layer = 8;
  GPT2LMHeadModel model(config);
  InitializeParameters(model, 1);
  const auto deviation = [&](const std::string& name) {
    for (const NamedVariable& p : model.NamedParameters()) {
      if (p.name != name) continue;
      double sum = 0;
      const std::vector<double> values = p.variable.data().ToDoubles();
      for (double v : values) sum += v * v;
      return std::sqrt(sum / static_cast<double>(values.size()));
    }
    return -1.0;
  };
  EXPECT_NEAR(deviation("transformer.wte.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_fc.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.005, 0.0005);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_proj.weight"), 0.005, 0.0005);
  EXPECT_EQ(deviation("transformer.h.0.ln_1.weight"), 1.0);
  EXPECT_EQ(deviation("transformer.h.0.attn.c_attn.bias"), 0.0);
}

TEST(ModelsTest, LossIsThatOfShiftedLogits) {
  for (const auto& model : AllModels()) {
    const Tensor ids = Ids(2, 6);
    std::vector<int64_t> labels = ids.ToVector<int64_t>();
    labels[2] = labels[7] = -100;
    const Tensor labels_BT = Tensor::FromVector(labels, {2, 6});
    EXPECT_EQ(CausalLM::NumCountedTokens(labels_BT), 8);
    const std::vector<double> logits = (*model)(ids).data().ToDoubles();
    double sum = 0;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t t = 0; t + 1 < 6; ++t) {
        const int64_t label = labels[b * 6 + t + 1];
        if (label == -100) continue;
        const double* row = &logits[(b * 6 + t) * kVocab];
        double total = 0;
        for (int64_t v = 0; v < kVocab; ++v) total += std::exp(row[v]);
        sum += std::log(total) - row[label];
      }
    }
    EXPECT_NEAR(model->Loss(ids, labels_BT).data().Item(), sum / 8, 1e-5);
    EXPECT_NEAR(model->Loss(ids, labels_BT, {.divisor = 32}).data().Item(),
                sum / 32, 1e-5);
  }
}

// A rank whose part of the batch is empty takes part in every step.
TEST(ModelsTest, NoRowsGiveZeroLossAndZeroGradients) {
  for (const auto& model : AllModels()) {
    SCOPED_TRACE(model->class_name());
    for (bool checkpointing : {false, true}) {
      model->set_activation_checkpointing(checkpointing);
      model->ZeroGrad();
      const Variable loss = model->Loss(Ids(0, 6), Ids(0, 6), {.divisor = 10});
      EXPECT_EQ(loss.data().Item(), 0.0);
      loss.Backward();
      for (const std::vector<double>& grad : GradientsOf(*model)) {
        EXPECT_EQ(grad, std::vector<double>(grad.size(), 0.0));
      }
    }
    EXPECT_EQ((*model)(Ids(0, 6)).shape(), (Shape{0, 6, kVocab}));
    EXPECT_EQ(model->Loss(Ids(2, 1), Ids(2, 1)).data().Item(), 0.0);
  }
}

TEST(ModelsTest, RecomputationGivesTheSameBits) {
  for (const auto& model : AllModels()) {
    SCOPED_TRACE(model->class_name());
    const Tensor ids = Ids(2, 6);
    const Variable loss = model->Loss(ids, ids);
    loss.Backward();
    const auto expected = GradientsOf(*model);
    model->ZeroGrad();
    model->set_activation_checkpointing(true);
    const Variable again = model->Loss(ids, ids);
    EXPECT_EQ(again.data().Item(), loss.data().Item());
    again.Backward();
    EXPECT_EQ(GradientsOf(*model), expected);
  }
}

// Dropout too: masks depend on module, step and global sample, not on the run.
void ExpectDropoutByPlace(CausalLM& model) {
  SCOPED_TRACE(model.class_name());
  InitializeParameters(model, 1);
  const Tensor ids = Ids(4, 6);
  const auto gradients = [&](const Tensor& part, const RandomContext& context) {
    const RandomContextGuard guard(context);
    model.ZeroGrad();
    model.Loss(part, part, {.divisor = 20}).Backward();
    return GradientsOf(model);
  };
  const auto expected = gradients(ids, {.seed = 3, .step = 5});
  model.set_activation_checkpointing(true);
  EXPECT_EQ(gradients(ids, {.seed = 3, .step = 5}), expected);
  EXPECT_NE(gradients(ids, {.seed = 3, .step = 6}), expected);

  // Samples 0 and 1 on one rank, 2 and 3 on another.
  auto sum = gradients(ids.Narrow(0, 0, 2), {.seed = 3, .step = 5});
  const auto rest =
      gradients(ids.Narrow(0, 2, 2), {.seed = 3, .step = 5, .first_sample = 2});
  for (size_t p = 0; p < sum.size(); ++p) {
    for (size_t i = 0; i < sum[p].size(); ++i) sum[p][i] += rest[p][i];
    EXPECT_TRUE(AllClose(sum[p], expected[p], 1e-5));
  }
  model.Eval();
  EXPECT_EQ(gradients(ids, {.seed = 3, .step = 5}),
            gradients(ids, {.seed = 4, .step = 7}));
}

TEST(ModelsTest, DropoutIsTheSameInRecomputationAndOnAnyRank) {
  GPT2Config outside = TinyGPT2(), inside = TinyGPT2();
  outside.resid_pdrop = outside.embd_pdrop = 0.25;
  inside.attn_pdrop = 0.25;
  for (const GPT2Config& config : {outside, inside}) {
    GPT2LMHeadModel model(config);
    ExpectDropoutByPlace(model);
  }
  for (LlamaFamily family : {LlamaFamily::kLlama, LlamaFamily::kMistral}) {
    LlamaConfig config = TinyLlama(family);
    config.attention_dropout = 0.25;
    LlamaForCausalLM model(config);
    ExpectDropoutByPlace(model);
  }
}

// Every layer draws its own mask.
TEST(ModelsTest, LayersDropOtherWeights) {
  GPT2Config config = TinyGPT2();
  config.attn_pdrop = 0.5;
  const RandomContextGuard guard({.seed = 1});
  GPT2Attention first(config, 0), second(config, 1);
  InitializeParameters(first, 1);
  InitializeParameters(second, 1);
  const Variable x = RandomLeaf({2, 6, 8}, 1);
  first.To(DType::kFloat64);
  second.To(DType::kFloat64);
  EXPECT_NE(first(x, nullptr).data().ToDoubles(),
            second(x, nullptr).data().ToDoubles());
  first.Eval();
  second.Eval();
  EXPECT_EQ(first(x, nullptr).data().ToDoubles(),
            second(x, nullptr).data().ToDoubles());
}

// The whole model in float64 against differences, tokens and labels fixed.
TEST(ModelsTest, GradientsOfWholeModels) {
  const Tensor ids = Ids(1, 4);
  for (const auto& model : AllModels()) {
    SCOPED_TRACE(model->class_name());
    model->To(DType::kFloat64);
    std::vector<Variable> some;
    for (const NamedVariable& p : model->NamedParameters()) {
      // One of each kind is enough: those of the first block, and the ends.
      if (p.name.find(".1.") == std::string::npos &&
          p.variable.num_dims() == 1) {
        some.push_back(p.variable);
      }
    }
    EXPECT_TRUE(GradCheck(
        [&](const std::vector<Variable>&) { return model->Loss(ids, ids); },
        some));
  }
}

TEST(ModelsTest, CacheGivesTheLogitsOfAWholeForward) {
  for (const auto& model : AllModels()) {
    SCOPED_TRACE(model->class_name());
    const Tensor ids = Ids(2, 9);
    const std::vector<double> whole = (*model)(ids).data().ToDoubles();
    KeyValueCache cache = model->NewCache(2, 9);
    int64_t position = 0;
    for (int64_t length : {4, 1, 1, 3}) {
      const Tensor next =
          model->NextLogits(ids.Narrow(1, position, length), cache);
      position += length;
      std::vector<double> expected;
      for (int64_t b = 0; b < 2; ++b) {
        const auto row = whole.begin() + (b * 9 + position - 1) * kVocab;
        expected.insert(expected.end(), row, row + kVocab);
      }
      EXPECT_TRUE(AllClose(next.ToDoubles(), expected, 1e-5));
    }
    EXPECT_THROWS_ERROR(model->NextLogits(ids.Narrow(1, 0, 1), cache),
                        absl::StatusCode::kInvalidArgument,
                        "make a larger cache");
  }
}

// Positions after p do not change the logits at p; with a window of 3 neither
// do those 2 layers * 2 positions before it.
// Each token of a cached text is turned by the frequencies of the length that
// the text had then.
TEST(ModelsTest, StretchedRopeReadsLongerTexts) {
  LlamaConfig config = TinyLlama(LlamaFamily::kLlama);
  config.rope = {.rope_type = "dynamic", .factor = 2};
  LlamaForCausalLM model(config);
  InitializeParameters(model, 1);
  const Tensor ids = Ids(1, 24);
  EXPECT_EQ(model.max_positions(), 32);
  const std::vector<double> whole = model(ids).data().ToDoubles();
  // A short text after a long one is as before.
  const std::vector<double> part =
      model(ids.Narrow(1, 0, 16)).data().ToDoubles();
  LlamaForCausalLM fresh(config);
  InitializeParameters(fresh, 1);
  EXPECT_EQ(fresh(ids.Narrow(1, 0, 16)).data().ToDoubles(), part);
  EXPECT_NE(std::vector<double>(whole.begin(), whole.begin() + 16 * kVocab),
            part);
  // All at once is the same with a cache.
  KeyValueCache cache = model.NewCache(1, 32);
  EXPECT_TRUE(AllClose(model.NextLogits(ids, cache).ToDoubles(),
                       std::vector<double>(whole.end() - kVocab, whole.end()),
                       1e-5));
  model.NextLogits(Ids(1, 1), cache);
  EXPECT_THROWS_ERROR(model(Ids(1, 33)), absl::StatusCode::kInvalidArgument,
                      "at most 32");
}

TEST(ModelsTest, SlidingWindowForgets) {
  LlamaForCausalLM model(TinyLlama(LlamaFamily::kMistral));
  InitializeParameters(model, 1);
  std::vector<int64_t> ids = Ids(1, 12).ToVector<int64_t>();
  const auto last = [&] {
    const std::vector<double> all =
        model(Tensor::FromVector(ids, {1, 12})).data().ToDoubles();
    return std::vector<double>(all.end() - kVocab, all.end());
  };
  const std::vector<double> before = last();
  ids[6] = (ids[6] + 1) % kVocab;
  EXPECT_EQ(last(), before);
  ids[7] = (ids[7] + 1) % kVocab;
  EXPECT_NE(last(), before);
}

TEST(ModelsTest, TiedHeadIsOneParameter) {
  LlamaConfig config = TinyLlama(LlamaFamily::kLlama);
  config.tie_word_embeddings = true;
  LlamaForCausalLM model(config);
  const std::vector<NamedVariable> all = model.NamedParameters(true);
  EXPECT_EQ(all.back().name, "lm_head.weight");
  EXPECT_TRUE(all.back().variable.Is(all.front().variable));
  config.tie_word_embeddings = false;
  EXPECT_EQ(LlamaForCausalLM(config).NumParameters(),
            model.NumParameters() + kVocab * 8);
}

TEST(ModelsTest, MetaDeviceTakesNoMemory) {
  const DeviceGuard guard(kMetaDevice);
  LlamaForCausalLM model(TinyLlama(LlamaFamily::kQwen3));
  for (const NamedVariable& p : model.NamedParameters()) {
    EXPECT_TRUE(p.variable.data().is_meta()) << p.name;
  }
}

TEST(ModelsTest, FlopsCountWeightsAndAttention) {
  const GPT2LMHeadModel model(TinyGPT2());
  const double weights = 2 * 12 * 8 * 8 + kVocab * 8;
  EXPECT_EQ(model.FlopsPerToken(10), 6 * weights + 12 * 2 * 8 * 10);
}

TEST(ModelsTest, Refusals) {
  GPT2Config config = TinyGPT2();
  config.attn_pdrop = 1.0;
  EXPECT_THROWS_ERROR(GPT2LMHeadModel{config},
                      absl::StatusCode::kInvalidArgument,
                      "attn_pdrop is 1, not in [0, 1)");
  const std::shared_ptr<CausalLM> model = AllModels()[0];
  EXPECT_THROWS_ERROR((*model)(Ids(1, 17)), absl::StatusCode::kInvalidArgument,
                      "17 positions, but the model was made for at most 16");
  EXPECT_THROWS_ERROR(model->Loss(Ids(2, 6), Ids(2, 5)),
                      absl::StatusCode::kInvalidArgument, "Loss: wants int64");
}

}  // namespace
}  // namespace tessera
