// Models that others saved give the logits, gradients, losses and tokens that
// torch gave. Walks every folder below $TESSERA_GOLDEN.
#include <algorithm>
#include <cmath>

#include "runtime/optim/adamw.h"
#include "tests/numerics/golden_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

// Of a tensor's largest value.
constexpr double kTensorTolerance = 2e-5;
constexpr double kLossTolerance = 1e-4;  // Relative.
constexpr double kTrainedTolerance = 1e-3;

std::vector<std::string> FolderNames() { return GoldenModelFolders(); }

class GoldenModelsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<GoldenModel> golden = LoadGoldenModel(GetParam());
    ASSERT_OK(golden);
    golden_ = *std::move(golden);
    absl::StatusOr<std::shared_ptr<CausalLM>> model = MakeGoldenModel(golden_);
    ASSERT_OK(model);
    model_ = *std::move(model);
  }

  GoldenModel golden_;
  std::shared_ptr<CausalLM> model_;
};

TEST_P(GoldenModelsTest, Logits) {
  const Variable logits = (*model_)(golden_.input_ids_BT);
  EXPECT_EQ(logits.shape(), golden_.logits_BTV.shape());
  EXPECT_TRUE(AllClose(logits.data().ToDoubles(),
                       golden_.logits_BTV.ToDoubles(), kTensorTolerance));
}

TEST_P(GoldenModelsTest, LossAndGradients) {
  for (bool checkpointing : {false, true}) {
    model_->ZeroGrad();
    model_->set_activation_checkpointing(checkpointing);
    const Variable loss = model_->Loss(golden_.input_ids_BT, golden_.labels_BT);
    EXPECT_NEAR(loss.data().Item(), golden_.loss, kTensorTolerance);
    loss.Backward();
    const std::vector<NamedVariable> parameters = model_->NamedParameters();
    EXPECT_EQ(parameters.size(), golden_.grads.size());
    for (const NamedVariable& p : parameters) {
      ASSERT_EQ(golden_.grads.count(p.name), 1u) << p.name;
      EXPECT_TRUE(AllClose(p.variable.grad().ToDoubles(),
                           golden_.grads[p.name].ToDoubles(), kTensorTolerance))
          << p.name;
    }
  }
}

// Of the gradients of all parameters, a tied one once.
double GradientNorm(const Module& model) {
  double squares = 0;
  for (const NamedVariable& p : model.NamedParameters()) {
    for (double g : p.variable.grad().ToDoubles()) squares += g * g;
  }
  return std::sqrt(squares);
}

AdamW MakeOptimizer(const Module& model, const GoldenTraining& training) {
  std::vector<OptimizerParameter> parameters;
  std::vector<std::string> no_decay;
  for (const NamedVariable& p : model.NamedParameters()) {
    parameters.push_back({p.name, p.variable});
    if (p.variable.num_dims() < 2) no_decay.push_back(p.name);
  }
  OptimizerOptions options;
  options.lr = training.learning_rate;
  options.beta1 = training.beta1;
  options.beta2 = training.beta2;
  options.eps = training.eps;
  options.weight_decay = training.weight_decay;
  return AdamW(GroupsByDecay(parameters, no_decay, options));
}

TEST_P(GoldenModelsTest, TenSteps) {
  const GoldenTraining& training = golden_.training;
  AdamW optimizer = MakeOptimizer(*model_, training);
  for (size_t k = 0; k < training.losses.size(); ++k) {
    const Tensor ids = training.batches_KBT.Select(0, static_cast<int64_t>(k));
    const Variable loss = model_->Loss(ids, ids);
    loss.Backward();
    const double norm = GradientNorm(*model_);
    EXPECT_NEAR(loss.data().Item(), training.losses[k],
                kLossTolerance * training.losses[k]);
    EXPECT_NEAR(norm, training.grad_norms[k],
                kLossTolerance * training.grad_norms[k]);
    const double scale = std::min(1.0, training.max_norm / (norm + 1e-6));
    optimizer.SetGradScale(
        Tensor::FromVector<float>({static_cast<float>(scale)}, {1}));
    optimizer.Step();
    optimizer.ZeroGrad();
  }
  for (const NamedVariable& p : model_->NamedParameters()) {
    ASSERT_EQ(training.parameters.count(p.name), 1u) << p.name;
    EXPECT_TRUE(CloseInRms(p.variable.data(), training.parameters.at(p.name),
                           kTrainedTolerance))
        << p.name;
  }
}

int64_t ArgMax(const std::vector<double>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

TEST_P(GoldenModelsTest, GreedyTokens) {
  const auto total = static_cast<int64_t>(golden_.greedy.size());
  std::vector<int64_t> ids(golden_.greedy.begin(),
                           golden_.greedy.begin() + golden_.num_prompt_ids);
  std::vector<int64_t> again = ids;
  KeyValueCache cache = model_->NewCache(1, total);
  Tensor next = Tensor::FromVector(ids, {1, golden_.num_prompt_ids});
  while (static_cast<int64_t>(ids.size()) < total) {
    ids.push_back(ArgMax(model_->NextLogits(next, cache).ToDoubles()));
    next = Tensor::FromVector<int64_t>({ids.back()}, {1, 1});
    // Without a cache: the whole text again for each token.
    const auto length = static_cast<int64_t>(again.size());
    const Variable all = (*model_)(Tensor::FromVector(again, {1, length}));
    again.push_back(
        ArgMax(all.data().Select(0, 0).Select(0, length - 1).ToDoubles()));
  }
  EXPECT_EQ(ids, golden_.greedy);
  EXPECT_EQ(again, golden_.greedy);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModelsTest,
                         ::testing::ValuesIn(FolderNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           name = name.substr(name.rfind('/') + 1);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(c); }, '_');
                           return name + "_" + std::to_string(info.index);
                         });

}  // namespace
}  // namespace tessera
