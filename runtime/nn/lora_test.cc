// Adapters: which layers they stand beside, what they compute, and what learns.
#include "runtime/nn/lora.h"

#include <memory>
#include <string>
#include <vector>

#include "runtime/autograd/random_context.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Strings = std::vector<std::string>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::shared_ptr<CausalLM> MakeSmall(bool gpt2) {
  std::shared_ptr<CausalLM> model;
  if (gpt2) {
    model = std::make_shared<GPT2LMHeadModel>(SmallGpt2());
  } else {
    model = std::make_shared<LlamaForCausalLM>(SmallLlama());
  }
  InitializeParameters(*model, 1);
  return model;
}

Tensor Ids(uint64_t seed = 7) {
  std::vector<int64_t> ids;
  for (double id : RandomIntegers(2 * 9, seed, 0, kSmallVocabulary - 1)) {
    ids.push_back(static_cast<int64_t>(id));
  }
  return Tensor::FromVector(ids, {2, 9});
}

LoraConfig AllLinear(int64_t rank = 3) {
  return {.rank = rank, .alpha = 5, .target_pattern = "all-linear"};
}

// Gives every adapter's B values that matter.
void FillB(Module& model, double size = 0.2) {
  uint64_t seed = 100;
  for (const NamedVariable& p : model.NamedParameters()) {
    if (!p.name.ends_with("lora_B.weight")) continue;
    const int64_t n = p.variable.data().num_elements();
    ops::Copy(Tensor::FromVector(RandomValues(n, ++seed, -size, size),
                                 p.variable.shape()),
              p.variable.data());
  }
}

double LargestDifference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.ToDoubles();
  const std::vector<double> y = b.ToDoubles();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(x[i] - y[i]));
  }
  return largest;
}

TEST(LoraTest, ChoosesLayersByNameEndPatternOrAll) {
  const auto llama = MakeSmall(false);
  const auto targets = [&](LoraConfig config) {
    return LoraTargets(*llama, config);
  };
  EXPECT_EQ(
      targets({.target_modules = {"q_proj", "layers.1.mlp.up_proj"}}),
      (Strings{"model.layers.0.self_attn.q_proj",
               "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj",
               "model.layers.2.self_attn.q_proj"}));
  EXPECT_EQ(targets({.target_pattern = R"(.*\.[02]\..*(k|v)_proj)"}).size(),
            4u);
  EXPECT_EQ(targets(AllLinear()).size(), 3 * 7u);
  LoraConfig some = AllLinear();
  some.exclude_modules = {"down_proj", "model.layers.0.self_attn.o_proj"};
  EXPECT_EQ(targets(some).size(), 3 * 7u - 3 - 1);
  EXPECT_EQ(DefaultLoraTargets(*llama), (Strings{"q_proj", "v_proj"}));

  const auto gpt2 = MakeSmall(true);
  EXPECT_EQ(LoraTargets(*gpt2, AllLinear()).size(), 3 * 4u);
  // A part of a name is no end of it.
  EXPECT_EQ(LoraTargets(*gpt2, {.target_modules = {"c_proj"}}).size(), 3 * 2u);
  EXPECT_EQ(DefaultLoraTargets(*gpt2), Strings{"c_attn"});
}

TEST(LoraTest, RefusesWhatItCannotAdapt) {
  const auto model = MakeSmall(false);
  const auto refuse = [&](const LoraConfig& config, const std::string& reason) {
    EXPECT_THROWS_ERROR(AddLora(*model, config), kInvalid, reason);
  };
  refuse({.target_modules = {"q_proj", "c_attn"}},
         "no module \"c_attn\"; there are q_proj, k_proj");
  refuse({.target_modules = {"proj"}}, "no module \"proj\"");
  refuse({.target_modules = {"embed_tokens"}}, "is a Embedding");
  refuse({.target_modules = {"lm_head"}}, "lm_head is the head");
  refuse({.target_pattern = "q_proj"}, "there are q_proj, k_proj");
  refuse({.target_pattern = "*"}, "no regular expression");
  refuse({.target_pattern = "(a"}, "no regular expression");
  refuse({}, "names or as a pattern");
  refuse({.target_modules = {"q_proj"}, .target_pattern = "all-linear"},
         "names or as a pattern");
  refuse({.rank = 0, .target_modules = {"q_proj"}}, "rank is 0");
  refuse({.dropout = 1, .target_modules = {"q_proj"}}, "dropout is 1");
  // Nothing has changed.
  EXPECT_TRUE(model->NamedParameters()[1].variable.requires_grad());
  AddLora(*model, {.target_modules = {"q_proj"}});
  refuse({.target_modules = {"q_proj"}}, "beside another");
}

TEST(LoraTest, APatternBecomesNames) {
  const auto names = [](const std::string& pattern) {
    const auto model = MakeSmall(true);
    const LoraConfig named =
        AddLora(*model, {.rank = 2, .target_pattern = pattern});
    EXPECT_EQ(named.target_pattern, "");
    EXPECT_EQ(named.rank, 2);
    return named.target_modules;
  };
  EXPECT_EQ(names("all-linear"), (Strings{"c_attn", "c_proj", "c_fc"}));
  EXPECT_EQ(names(R"(.*\.c_attn)"), Strings{"c_attn"});
  EXPECT_EQ(
      names(R"(.*\.[01]\.attn\.c_proj)"),
      (Strings{"transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"}));
}

TEST(LoraTest, NamesShapesAndWhatLearns) {
  for (const bool gpt2 : {true, false}) {
    const auto model = MakeSmall(gpt2);
    const size_t num_before = model->NamedParameters().size();
    AddLora(*model, {.rank = 2, .target_modules = DefaultLoraTargets(*model)});
    size_t num_learning = 0;
    for (const NamedVariable& p : model->NamedParameters()) {
      EXPECT_EQ(p.variable.requires_grad(), IsLoraParameter(p.name)) << p.name;
      num_learning += IsLoraParameter(p.name) ? 1 : 0;
      if (p.name == "transformer.h.1.attn.c_attn.lora_A.weight" ||
          p.name == "model.layers.1.self_attn.v_proj.lora_A.weight") {
        EXPECT_EQ(p.variable.shape(), (Shape{2, 24}));
      }
      if (p.name == "transformer.h.1.attn.c_attn.lora_B.weight") {
        EXPECT_EQ(p.variable.shape(), (Shape{72, 2}));
      }
      if (p.name == "model.layers.1.self_attn.v_proj.lora_B.weight") {
        EXPECT_EQ(p.variable.shape(), (Shape{8, 2}));
      }
    }
    EXPECT_EQ(num_learning, gpt2 ? 6u : 12u);
    EXPECT_EQ(model->NamedParameters().size(), num_before + num_learning);
  }
}

TEST(LoraTest, BeginsAsTheBaseBitForBit) {
  for (const bool gpt2 : {true, false}) {
    const auto model = MakeSmall(gpt2);
    const std::vector<double> before = (*model)(Ids()).data().ToDoubles();
    AddLora(*model, AllLinear());
    InitializeLora(*model, 3);
    EXPECT_EQ((*model)(Ids()).data().ToDoubles(), before);
    FillB(*model);
    EXPECT_NE((*model)(Ids()).data().ToDoubles(), before);
  }
}

TEST(LoraTest, StartValuesDependOnSeedAndNameAlone) {
  const auto a = MakeSmall(false);
  const auto b = MakeSmall(false);
  AddLora(*a, AllLinear());
  AddLora(*b, {.rank = 3, .target_modules = {"v_proj"}});
  InitializeLora(*a, 5);
  InitializeLora(*b, 5);
  const std::string name = "model.layers.2.self_attn.v_proj.lora_A.weight";
  std::vector<std::vector<double>> values;
  for (const auto& model : {a, b}) {
    for (const NamedVariable& p : model->NamedParameters()) {
      if (p.name == name) values.push_back(p.variable.data().ToDoubles());
    }
  }
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0], values[1]);
  const double bound = 1 / std::sqrt(24.0);
  const auto [low, high] =
      std::minmax_element(values[0].begin(), values[0].end());
  EXPECT_GE(*low, -bound);
  EXPECT_LE(*high, bound);
  EXPECT_GT(*high - *low, bound);
}

TEST(LoraTest, GradientsOfATermAndItsMerge) {
  for (const bool in_out : {false, true}) {
    Linear linear(5, 4);
    Conv1D conv(5, 4, 0.5);
    AffineLayer& layer = in_out ? static_cast<AffineLayer&>(conv) : linear;
    layer.AddLowRank({.rank = 3, .scale = 1.5}, "layer");
    layer.To(DType::kFloat64);
    InitializeParameters(layer, 2);
    const auto run = [&](const Variable& x) {
      return in_out ? conv(x) : linear(x);
    };
    const Variable a = layer.low_rank()->lora_a->weight();
    const Variable b = layer.low_rank()->lora_b->weight();
    ops::Copy(RandomLeaf({4, 3}, 11).data(), b.data());
    const Variable x = RandomLeaf({2, 3, 5}, 12);
    EXPECT_TRUE(GradCheck([&](const auto& v) { return run(v[0]); },
                          {x, a, b, layer.weight()}));

    const std::vector<double> with = run(x).data().ToDoubles();
    layer.MergeLowRank();
    EXPECT_EQ(layer.low_rank(), nullptr);
    const std::vector<double> merged = run(x).data().ToDoubles();
    ops::Fill(b.data(), 0);  // No longer used.
    EXPECT_EQ(run(x).data().ToDoubles(), merged);
    for (size_t i = 0; i < with.size(); ++i) {
      EXPECT_NEAR(with[i], merged[i], 1e-14);
    }
  }
}

TEST(LoraTest, ATermIsScaleTimesBTimesA) {
  const LowRankTerm term(2, 3, {.rank = 1, .scale = 0.5}, "layer");
  ops::Copy(Tensor::FromVector(std::vector<float>{1, 10}, {1, 2}),
            term.lora_a->weight().data());
  ops::Copy(Tensor::FromVector(std::vector<float>{2, 4, 6}, {3, 1}),
            term.lora_b->weight().data());
  EXPECT_EQ(term.Delta(DType::kFloat32).ToDoubles(),
            (std::vector<double>{1, 10, 2, 20, 3, 30}));
  EXPECT_EQ((LoraConfig{.rank = 16, .alpha = 8}).scale(), 0.5);
  EXPECT_EQ(
      (LoraConfig{.rank = 16, .alpha = 8, .rank_stabilized = true}).scale(), 2);
}

TEST(LoraTest, MergedLogitsEqualUnmerged) {
  for (const bool gpt2 : {true, false}) {
    for (const bool stabilized : {true, false}) {
      const auto model = MakeSmall(gpt2);
      LoraConfig config = AllLinear();
      config.rank_stabilized = stabilized;
      AddLora(*model, config);
      InitializeLora(*model, 3);
      const Tensor base = (*model)(Ids()).data();
      FillB(*model, 0.05);
      const Tensor unmerged = (*model)(Ids()).data();
      EXPECT_GT(LargestDifference(base, unmerged), 1e-3);
      MergeLora(*model);
      EXPECT_LT(LargestDifference((*model)(Ids()).data(), unmerged), 1e-5);
    }
  }
}

TEST(LoraTest, MergesIntoLowPrecision) {
  Linear layer(64, 32);
  layer.AddLowRank({.rank = 4, .scale = 0.5}, "layer");
  InitializeParameters(layer, 4);
  FillB(layer);
  Linear exact(64, 32);
  InitializeParameters(exact, 4);
  layer.To(DType::kBFloat16);
  ops::Copy(layer.weight().data(), exact.weight().data());
  const Tensor delta = layer.low_rank()->Delta(DType::kFloat32);
  layer.MergeLowRank();
  const Tensor wanted =
      ops::Cast(ops::Add(exact.weight().data(), delta), DType::kBFloat16);
  EXPECT_EQ(layer.weight().data().ToDoubles(), wanted.ToDoubles());
}

// The base's embedding wants no gradient, so that the first block's input wants
// none either.
TEST(LoraTest, GradientsWithAndWithoutRecomputation) {
  std::vector<std::vector<double>> kept;
  for (const bool recompute : {false, true}) {
    const auto model = MakeSmall(false);
    AddLora(*model, AllLinear());
    InitializeLora(*model, 3);
    FillB(*model);
    model->set_activation_checkpointing(recompute);
    model->Loss(Ids(), Ids()).Backward();
    size_t at = 0;
    for (const NamedVariable& p : model->NamedParameters()) {
      EXPECT_EQ(p.variable.grad().defined(), IsLoraParameter(p.name)) << p.name;
      if (!IsLoraParameter(p.name)) continue;
      const std::vector<double> grad = p.variable.grad().ToDoubles();
      EXPECT_GT(*std::max_element(grad.begin(), grad.end()), 0) << p.name;
      if (!recompute) {
        kept.push_back(grad);
      } else {
        EXPECT_EQ(grad, kept[at++]) << p.name;
      }
    }
  }
}

TEST(LoraTest, DropoutTouchesTheTermInTrainingAlone) {
  Linear layer(16, 8);
  layer.AddLowRank({.rank = 4, .scale = 1, .dropout = 0.5}, "model.layer");
  InitializeParameters(layer, 4);
  const Variable x =
      Variable(ops::Cast(RandomLeaf({6, 16}, 5).data(), DType::kFloat32));
  const auto run = [&](int64_t step) {
    const RandomContextGuard guard({.seed = 1, .step = step});
    return layer(x).data().ToDoubles();
  };
  const std::vector<double> base = run(0);  // B is zero.
  FillB(layer);
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  layer.Eval();
  EXPECT_EQ(run(1), run(2));
  EXPECT_NE(run(1), base);
}

}  // namespace
}  // namespace tessera
