// Units that keep their parameters gathered between the backwards of an
// accumulation, and what reads or writes shards meanwhile.
#include <gtest/gtest.h>

#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

constexpr int kRanks = 2;

// y = x w^T, where every element of w is the same number.
double LossOf(CaseModule& model) {
  const Variable x(ops::Full({1, 4}, 1.0, {DType::kFloat32, CurrentDevice()}));
  const Variable loss = SumOf(model(x));
  loss.Backward();
  return loss.data().Item();
}

void SetBetweenBackwards(const std::shared_ptr<Communicator>& world,
                         bool shards_in_place) {
  auto model = std::make_shared<CaseModule>("Model");
  auto layer = model->AddChild("layer", MakeLinear(4, 8, /*bias=*/false));
  model->body = [layer](const Variable& x) { return (*layer)(x); };
  FillParameters(*model);
  FullyShardOptions options =
      PerParameter(/*reshard_after_forward=*/false).options;
  options.shards_in_place = shards_in_place;
  auto sharded =
      OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  const Tensor ones =
      ops::Full({8, 4}, 1.0, {DType::kFloat32, CurrentDevice()});
  {
    const auto scope = sharded->NoSync();
    LossOf(*model);
    ASSERT_EQ(*sharded->StateOf("layer.weight"), UnitState::kUnsharded);
    ASSERT_TRUE(sharded->SetFullParameter("layer.weight", ones).ok());
    EXPECT_EQ(*sharded->StateOf("layer.weight"), UnitState::kSharded);
    EXPECT_EQ(LossOf(*model), 32.0);
    sharded->ForEachFullParameter([&](const std::string&, const Tensor& whole) {
      EXPECT_EQ(whole.ToVector<float>(), ones.ToVector<float>());
    });
  }
  EXPECT_EQ(LossOf(*model), 32.0);
}

TEST(KeptParametersTest, AValueSetBetweenBackwardsIsSeenByTheNextForward) {
  for (const RankKind kind : AllRankKinds()) {
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(RankKindName(kind));
      RunRanksAs(kind, kRanks, [&](const std::shared_ptr<Communicator>& world) {
        SetBetweenBackwards(world, in_place);
      });
    }
  }
}

}  // namespace
}  // namespace tessera
