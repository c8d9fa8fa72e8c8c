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
