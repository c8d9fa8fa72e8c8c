// Golden models on 2 and 3 ranks, both versions: row i of a batch goes to rank
// i mod W, and losses, norms, gradients and trained parameters are torch's of
// one process. Walks every folder below $TESSERA_GOLDEN.
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/optim/adamw.h"
#include "tests/numerics/golden_model.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr double kTensorTolerance = 2e-5;  // Of a tensor's largest value.
constexpr double kLossTolerance = 1e-4;    // Relative.
constexpr double kTrainedTolerance = 1e-3;

// Rows r, r + W, r + 2 W, ... of ids [B, T].
Tensor RowsOfRank(const Tensor& ids_BT, int rank, int world_size) {
  const std::vector<int64_t> all = ids_BT.ToVector<int64_t>();
  const int64_t length = ids_BT.size(1);
  std::vector<int64_t> mine;
  int64_t rows = 0;
  for (int64_t row = rank; row < ids_BT.size(0); row += world_size, ++rows) {
    mine.insert(mine.end(), all.begin() + row * length,
                all.begin() + (row + 1) * length);
  }
  return Tensor::FromVector(mine, {rows, length});
}

class Rank {
 public:
  Rank(const std::string& folder, int version,
       const std::shared_ptr<Communicator>& world)
      : world_(*world),
        golden_(OrThrow(LoadGoldenModel(folder))),
        model_(OrThrow(MakeGoldenModel(golden_))) {
    for (const NamedVariable& p : model_->NamedParameters()) {
      if (p.variable.num_dims() < 2) no_decay_.push_back(p.name);
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    sharded_ = OrThrow(
        FullyShard(*model_, OrThrow(DeviceMesh::Create(world)), options));
  }

  void CheckGradients() {
    const double loss = Loss(golden_.input_ids_BT, golden_.labels_BT);
    EXPECT_NEAR(loss, golden_.loss, kTensorTolerance);
    size_t count = 0;
    sharded_->ForEachFullTensor(
        [](const ShardedParameter& p) { return p.variable.grad(); },
        [&](const std::string& name, const Tensor& grad) {
          ++count;
          ASSERT_EQ(golden_.grads.count(name), 1u) << name;
          EXPECT_TRUE(AllClose(grad.ToDoubles(),
                               golden_.grads[name].ToDoubles(),
                               kTensorTolerance))
              << name;
        });
    EXPECT_EQ(count, golden_.grads.size());
    sharded_->ZeroGrad();
  }

  void CheckTenSteps() {
    const GoldenTraining& training = golden_.training;
    AdamW optimizer = MakeOptimizer();
    for (size_t k = 0; k < training.losses.size(); ++k) {
      const Tensor ids =
          training.batches_KBT.Select(0, static_cast<int64_t>(k));
      const double loss = Loss(ids, ids);
      EXPECT_NEAR(loss, training.losses[k],
                  kLossTolerance * training.losses[k]);
      const double norm = sharded_->ClipGradNorm(training.max_norm);
      EXPECT_NEAR(norm, training.grad_norms[k],
                  kLossTolerance * training.grad_norms[k]);
      optimizer.Step();
      sharded_->ZeroGrad();
    }
    sharded_->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          EXPECT_TRUE(CloseInRms(whole, training.parameters.at(name),
                                 kTrainedTolerance))
              << name;
        });
  }

 private:
  // Forward and backward of this rank's rows; the mean loss of all rows.
  double Loss(const Tensor& ids_BT, const Tensor& labels_BT) {
    LossOptions options;
    options.divisor = double(CausalLM::NumCountedTokens(labels_BT)) /
                      double(world_.world_size());
    const Variable loss = model_->Loss(Mine(ids_BT), Mine(labels_BT), options);
    loss.Backward();
    double mean = 0;
    for (const std::string& part : OrThrow(world_.AllGatherBytes(
             std::to_string(loss.data().Item()), "loss"))) {
      mean += std::stod(part) / world_.world_size();
    }
    return mean;
  }

  Tensor Mine(const Tensor& rows) {
    return RowsOfRank(rows, world_.rank(), world_.world_size());
  }

  AdamW MakeOptimizer() const {
    std::vector<OptimizerParameter> parameters;
    for (const ShardedParameter& p : sharded_->Parameters()) {
      parameters.push_back({p.name, p.variable});
    }
    const GoldenTraining& training = golden_.training;
    OptimizerOptions options;
    options.lr = training.learning_rate;
    options.beta1 = training.beta1;
    options.beta2 = training.beta2;
    options.eps = training.eps;
    options.weight_decay = training.weight_decay;
    return AdamW(GroupsByDecay(parameters, no_decay_, options));
  }

  Communicator& world_;
  GoldenModel golden_;
  std::shared_ptr<CausalLM> model_;
  std::vector<std::string> no_decay_;
  std::unique_ptr<FullyShardedModule> sharded_;
};

class GoldenShardedTest
    : public ::testing::TestWithParam<std::tuple<std::string, int, int>> {};

TEST_P(GoldenShardedTest, IsTheUnshardedRun) {
  const auto [folder, world_size, version] = GetParam();
  RunRanks(world_size, [&, folder = folder, version = version](
                           const std::shared_ptr<Communicator>& world) {
    Rank rank(folder, version, world);
    rank.CheckGradients();
    rank.CheckTenSteps();
  });
}

std::string CaseName(
    const ::testing::TestParamInfo<std::tuple<std::string, int, int>>& info) {
  std::string name = std::get<0>(info.param);
  name = name.substr(name.rfind('/') + 1);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenShardedTest,
    ::testing::Combine(::testing::ValuesIn(GoldenModelFolders()),
                       ::testing::Values(2, 3), ::testing::Values(1, 2)),
    CaseName);

}  // namespace
}  // namespace tessera
