// What reads or writes shards between a forward and a backward, or between the
// backwards of an accumulation, while units keep parameters, all or in part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

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

// A layer in a model; `fail` makes the model's forward throw behind the
// layer's.
struct Sample {
  Sample(const std::shared_ptr<Communicator>& world, const Mode& mode) {
    layer = model->AddChild("layer", MakeLinear(4, 8));
    model->body = [this](const Variable& x) {
      const Variable y = (*layer)(x);
      if (fail) throw Error(absl::InternalError("failed on purpose"));
      return y;
    };
    FillParameters(*model);
    weight = layer->NamedParameters()[0].variable;
    bias = layer->NamedParameters()[1].variable;
    sharded = OrThrow(FullyShard(
        *model, OrThrow(DeviceMesh::Create(world, mode.mesh)), mode.options));
    ones = ops::Full({8, 4}, 1.0, {DType::kFloat32, CurrentDevice()});
    x = Variable(ops::Full({1, 4}, 1.0, {DType::kFloat32, CurrentDevice()}),
                 true);
  }
  bool at_rest() const {
    return *sharded->StateOf("layer.weight") == UnitState::kSharded;
  }
  // Of weights of ones.
  double Expected() const {
    double sum = 32.0;
    for (double b : FillValues(8)) sum += b;
    return sum;
  }

  bool fail = false;
  std::shared_ptr<CaseModule> model = std::make_shared<CaseModule>("Model");
  std::shared_ptr<CaseModule> layer;
  Variable weight, bias, x;
  Tensor ones;
  std::unique_ptr<FullyShardedModule> sharded;
};

// With gradients on, and without a backward.
TEST(KeptParametersTest, AValueSetBetweenForwardsIsSeenByTheNext) {
  for (const Mode& mode : AllModes(4)) {
    for (const bool fails : {false, true}) {
      for (const bool through_view : {false, true}) {
        RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
          SCOPED_TRACE(mode.name);
          Sample sample(world, mode);
          if (fails) {
            sample.fail = true;
            EXPECT_THROW((*sample.model)(sample.x), Error);
            sample.fail = false;
            if (!through_view) return;  // Only between steps.
          } else {
            (*sample.model)(sample.x);
          }
          if (through_view && !sample.at_rest()) return;
          if (through_view) {
            ops::Fill(sample.weight.data(), 1.0);  // As optimizers write.
          } else {
            ASSERT_OK(
                sample.sharded->SetFullParameter("layer.weight", sample.ones));
          }
          const Variable loss = SumOf((*sample.model)(sample.x));
          EXPECT_NEAR(loss.data().Item(), sample.Expected(), 1e-5);
          loss.Backward();
          EXPECT_EQ(sample.x.grad().ToDoubles(), std::vector<double>(4, 8.0));
        });
      }
    }
  }
}

// As in one process: whoever changes a saved weight is told by backward, and
// the next step is as any; a bias is not saved.
TEST(KeptParametersTest, AValueSetBeforeBackwardIsFoundThere) {
  for (const int world_size : {1, 2, 4}) {
    for (const Mode& mode : AllModes(world_size)) {
      for (const bool through_view : {false, true}) {
        RunRanks(world_size, [&](const std::shared_ptr<Communicator>& world) {
          SCOPED_TRACE(mode.name);
          Sample sample(world, mode);
          Variable loss = SumOf((*sample.model)(sample.x));
          if (through_view) {
            ops::Fill(sample.weight.data(), 1.0);
          } else {
            ASSERT_OK(
                sample.sharded->SetFullParameter("layer.weight", sample.ones));
          }
          EXPECT_THAT(Try([&] { loss.Backward(); }),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               "\"layer.weight\" was changed in place"));
          sample.sharded->ZeroGrad();
          sample.x.ZeroGrad();
          loss = SumOf((*sample.model)(sample.x));
          ASSERT_OK(sample.sharded->SetFullParameter("layer.bias",
                                                     sample.ones.Select(1, 0)));
          loss.Backward();
          EXPECT_EQ(
              sample.weight.grad().ToDoubles(),
              std::vector<double>(sample.weight.grad().num_elements(), 1.0));
        });
      }
    }
  }
}

// Whoever kept the address of a gathered parameter finds no values there.
TEST(KeptParametersTest, ReleasedParametersArePoisoned) {
  for (const Mode& mode : AllModes(2)) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
      SCOPED_TRACE(mode.name);
      AllocatorOf(CurrentDevice()).SetPoison(true);
      Sample sample(world, mode);
      const float* address = nullptr;
      sample.layer->body = [&, body = sample.layer->body](const Variable& x) {
        address = static_cast<const float*>(sample.weight.data().data());
        return body(x);
      };
      const NoGrad no_grad;
      (*sample.model)(sample.x);
      ASSERT_NE(address, nullptr);
      const bool whole =
          mode.options.sharding_strategy == ShardingStrategy::kNoShard &&
          mode.options.fsdp_version == 1;
      const bool one_rank = sample.sharded->mesh().shape().shard == 1;
      EXPECT_EQ(std::isnan(*address), !whole && !one_rank);
    });
  }
}

// The value that was set last, whichever way.
TEST(KeptParametersTest, AValueSetBehindAReplacedOneCounts) {
  for (const Mode& mode : AllModes(4)) {
    RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
      SCOPED_TRACE(mode.name);
      Sample sample(world, mode);
      const NoGrad no_grad;
      Variable weight = sample.weight;
      weight.set_data(ops::Scale(weight.data(), 3.0));
      ASSERT_OK(sample.sharded->SetFullParameter("layer.weight", sample.ones));
      EXPECT_NEAR(SumOf((*sample.model)(sample.x)).data().Item(),
                  sample.Expected(), 1e-5);
    });
  }
}

// One that nobody can take over is no value that is lost.
TEST(KeptParametersTest, AValueReplacedWhileItIsKeptIsRefused) {
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    Sample sample(world, PerParameter(/*reshard_after_forward=*/false));
    Variable weight = sample.weight;
    (*sample.model)(sample.x);
    ASSERT_FALSE(sample.at_rest());
    weight.set_data(ops::Scale(weight.data(), 3.0));
    EXPECT_THROWS_ERROR(sample.sharded->Reshard(),
                        absl::StatusCode::kFailedPrecondition,
                        "its value was replaced");
  });
}

// Parts that are kept for a backward too.
TEST(KeptParametersTest, ReleasedBuffersAreAllOfThem) {
  for (const Mode& mode : AllModes(4)) {
    RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
      SCOPED_TRACE(mode.name);
      Sample sample(world, mode);
      const Allocator& allocator = AllocatorOf(CurrentDevice());
      const auto held = [&] {
        return allocator.stats().current(MemoryCategory::kScratch) +
               allocator.stats().current(MemoryCategory::kUnsharded);
      };
      const int64_t before = held();
      (*sample.model)(sample.x);
      sample.sharded->ReleaseBuffers();
      EXPECT_EQ(held(), before);
    });
  }
}

// Whoever uses a kept parameter behind the forward reads what it read, however
// late it is: shards that lie in place are written when all have read.
TEST(KeptParametersTest, AKeptValueIsReadBeforeItIsSet) {
  RunRankProcesses(
      RankKind::kSharedMemory, 2,
      [](const std::shared_ptr<Communicator>& world) {
        SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
        Sample sample(world, PerParameter(/*reshard_after_forward=*/false));
        (*sample.model)(sample.x);
        if (world->rank() == 1) {
          ComputeStream(CurrentDevice()).Enqueue("Sleep", [] {
            absl::SleepFor(absl::Milliseconds(30));
          });
        }
        const Tensor seen = ops::Scale(sample.weight.data(), 1.0);
        EXPECT_OK(
            sample.sharded->SetFullParameter("layer.weight", sample.ones));
        std::vector<double> expected = FillValues(32);
        for (double& v : expected) v = static_cast<float>(v);
        EXPECT_EQ(seen.ToDoubles(), expected);
        sample.sharded.reset();
        SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
      });
}

}  // namespace
}  // namespace tessera
