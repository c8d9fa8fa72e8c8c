// The exact order of collectives, and what may run ahead of what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "fsdp/comm/fake_communicator.h"
#include "fsdp/comm/recording_communicator.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int64_t kWidth = 8;

// R{a, b, c, ...}: the root owns parameters that it uses first and last. A
// child is wider than the one before it by `growth`.
std::shared_ptr<CaseModule> MakeTree(int num_children, int64_t growth = 0) {
  auto root = std::make_shared<CaseModule>("Root");
  const Variable first = root->AddParameter("first", {kWidth, kWidth});
  const Variable last =
      root->AddParameter("last", {kWidth, kWidth + num_children * growth});
  std::vector<std::shared_ptr<CaseModule>> children;
  for (int i = 0; i < num_children; ++i) {
    children.push_back(root->AddChild(
        std::string(1, char('a' + i)),
        MakeLinear(kWidth + i * growth, kWidth + (i + 1) * growth, false)));
  }
  root->body = [=](const Variable& x) {
    Variable y = functions::Linear(x, first, Variable(),
                                   functions::WeightLayout::kOutIn);
    for (const auto& child : children) y = (*child)(y);
    return functions::Linear(y, last, Variable(),
                             functions::WeightLayout::kOutIn);
  };
  FillParameters(*root);
  return root;
}

FullyShardOptions Options(int version, BackwardPrefetch prefetch) {
  FullyShardOptions options;
  options.fsdp_version = version;
  options.backward_prefetch = prefetch;
  options.auto_wrap_policy = WrapByClass{{"Layer"}};
  options.shards_in_place = false;
  return options;
}

FullyShardOptions Strategy(ShardingStrategy strategy) {
  FullyShardOptions options = Options(1, BackwardPrefetch::kPre);
  options.sharding_strategy = strategy;
  return options;
}

void Step(CaseModule& root, FullyShardedModule& sharded) {
  sharded.ZeroGrad();
  SumOfSquares(root(CaseInput(3, kWidth, 0, 0))).Backward();
}

// What rank 0 of two asks for in the step number `num_steps`.
std::vector<std::string> Collectives(const FullyShardOptions& options,
                                     int num_steps = 1,
                                     const MeshShape& shape = {},
                                     int world_size = 2) {
  std::vector<std::string> lines;
  RunRanks(world_size, [&](const std::shared_ptr<Communicator>& inner) {
    auto world = std::make_shared<RecordingCommunicator>(inner);
    auto root = MakeTree(3);
    auto mesh = OrThrow(DeviceMesh::Create(world, shape));
    auto sharded = OrThrow(FullyShard(*root, mesh, options));
    for (int step = 0; step < num_steps; ++step) {
      world->recording().Clear();
      Step(*root, *sharded);
    }
    if (world->rank() == 0) lines = world->recording().Lines();
  });
  return lines;
}

const std::vector<std::string> kForward = {"AllGather (root)", "AllGather a",
                                           "AllGather b", "AllGather c"};

std::vector<std::string> WithForward(const std::vector<std::string>& backward) {
  std::vector<std::string> all = kForward;
  all.insert(all.end(), backward.begin(), backward.end());
  return all;
}

// J.35, J.36, J.37.
TEST(OrderTest, WithoutPrefetchEachUnitIsGatheredWhenItIsNeeded) {
  const std::vector<std::string> expected = WithForward(
      {"AllGather c", "ReduceScatter c", "AllGather b", "ReduceScatter b",
       "AllGather a", "ReduceScatter a", "ReduceScatter (root)"});
  for (int version : {1, 2}) {
    EXPECT_THAT(Collectives(Options(version, BackwardPrefetch::kNone)),
                ElementsAreArray(expected));
  }
}

// J.38.
TEST(OrderTest, BackwardPreGathersTheNextUnitBeforeTheCurrentGradients) {
  const std::vector<std::string> expected = WithForward(
      {"AllGather c", "AllGather b", "ReduceScatter c", "AllGather a",
       "ReduceScatter b", "ReduceScatter a", "ReduceScatter (root)"});
  for (int version : {1, 2}) {
    for (int num_steps : {1, 3}) {
      EXPECT_THAT(
          Collectives(Options(version, BackwardPrefetch::kPre), num_steps),
          ElementsAreArray(expected));
    }
  }
}

// J.39: the same list but for when each gather is issued.
TEST(OrderTest, BackwardPostGathersTheNextUnitAfterTheCurrentIsFree) {
  EXPECT_THAT(
      Collectives(Options(1, BackwardPrefetch::kPost)),
      ElementsAreArray(WithForward(
          {"AllGather c", "AllGather b", "ReduceScatter c", "AllGather a",
           "ReduceScatter b", "ReduceScatter a", "ReduceScatter (root)"})));
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    auto root = MakeTree(2);
    auto mesh = OrThrow(DeviceMesh::Create(world));
    auto sharded =
        OrThrow(FullyShard(*root, mesh, Options(1, BackwardPrefetch::kPost)));
    Step(*root, *sharded);
    EXPECT_EQ(sharded->schedule().ToString(sharded->unit_names()),
              "forward gather (root)\n"
              "forward wait (root)\n"
              "forward gather a\n"
              "forward wait a\n"
              "forward reshard a\n"
              "forward gather b\n"
              "forward wait b\n"
              "forward reshard b\n"
              "backward gather b\n"
              "backward wait b\n"
              "backward reshard b\n"
              "backward gather a (prefetch)\n"
              "backward reduce b\n"
              "backward wait a\n"
              "backward reshard a\n"
              "backward reduce a\n"
              "backward reshard (root)\n"
              "backward reduce (root)\n"
              "backward finish a\n"
              "backward finish b\n"
              "backward finish (root)\n");
  });
}

// J.40.
TEST(OrderTest, KeptParametersAreNotGatheredInBackward) {
  const std::vector<std::string> expected =
      WithForward({"ReduceScatter c", "ReduceScatter b", "ReduceScatter a",
                   "ReduceScatter (root)"});
  EXPECT_THAT(Collectives(Strategy(ShardingStrategy::kShardGradOp)),
              ElementsAreArray(expected));
  FullyShardOptions keep = Options(2, BackwardPrefetch::kPre);
  keep.reshard_after_forward = false;
  EXPECT_THAT(Collectives(keep), ElementsAreArray(expected));
}

TEST(OrderTest, WholeParametersAreOnlyReduced) {
  EXPECT_THAT(Collectives(Strategy(ShardingStrategy::kNoShard)),
              ElementsAre("AllReduce c", "AllReduce b", "AllReduce a",
                          "AllReduce (root)"));
}

// J.97: the reduction inside the shard group, then across.
TEST(OrderTest, HybridReducesInsideAndThenAcross) {
  const std::vector<std::string> lines =
      Collectives(Strategy(ShardingStrategy::kHybridShard), 1,
                  {.replicate = 2, .shard = 2, .has_replicate_axis = true}, 4);
  std::vector<std::string> reductions;
  for (const std::string& line : lines) {
    if (line.find("AllGather") == std::string::npos) reductions.push_back(line);
  }
  EXPECT_THAT(reductions,
              ElementsAre("ReduceScatter c", "AllReduce c", "ReduceScatter b",
                          "AllReduce b", "ReduceScatter a", "AllReduce a",
                          "ReduceScatter (root)", "AllReduce (root)"));
}

// J.41.
TEST(OrderTest, ForwardPrefetchFollowsTheFirstIteration) {
  FullyShardOptions options = Options(1, BackwardPrefetch::kPre);
  options.forward_prefetch = true;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    auto root = MakeTree(3);
    auto mesh = OrThrow(DeviceMesh::Create(world));
    auto sharded = OrThrow(FullyShard(*root, mesh, options));
    const auto gathers_ahead = [&] {
      int n = 0;
      for (const ScheduleStep& step : sharded->schedule().current()) {
        n += step.kind == StepKind::kGather && step.prefetch && !step.backward;
      }
      return n;
    };
    Step(*root, *sharded);
    EXPECT_EQ(gathers_ahead(), 0);
    Step(*root, *sharded);
    EXPECT_EQ(gathers_ahead(), 3);
    EXPECT_EQ(sharded->schedule().previous().size(),
              sharded->schedule().current().size());
  });
}

// J.44, J.52, J.56.
TEST(OrderTest, NothingIsReducedWithoutGradientsOrWithoutSync) {
  RunRanks(2, [&](const std::shared_ptr<Communicator>& inner) {
    auto world = std::make_shared<RecordingCommunicator>(inner);
    auto root = MakeTree(1);
    auto mesh = OrThrow(DeviceMesh::Create(world));
    auto sharded =
        OrThrow(FullyShard(*root, mesh, Options(2, BackwardPrefetch::kPre)));
    world->recording().Clear();
    {
      NoGrad no_grad;
      (*root)(CaseInput(3, kWidth, 0, 0));
    }
    EXPECT_THAT(world->recording().Lines(),
                ElementsAre("AllGather (root)", "AllGather a"));
    world->recording().Clear();
    {
      const auto scope = sharded->NoSync();
      Step(*root, *sharded);
    }
    EXPECT_THAT(world->recording().Lines(),
                ElementsAre("AllGather (root)", "AllGather a", "AllGather a"));
    world->recording().Clear();
    SumOfSquares((*root)(CaseInput(3, kWidth, 0, 0))).Backward();
    EXPECT_THAT(world->recording().Lines(),
                ElementsAre("AllGather (root)", "AllGather a", "AllGather a",
                            "ReduceScatter a", "ReduceScatter (root)"));
  });
}

// Counts the all-gathers of children that have run.
class CountingCommunicator final : public FakeCommunicator {
 public:
  explicit CountingCommunicator(std::atomic<int>* count)
      : FakeCommunicator({.rank = 0, .world_size = 2}), count_(count) {}
  absl::Status AllGather(std::span<const GatherPart> parts, Stream& stream,
                         std::string_view what) override {
    RETURN_IF_ERROR(FakeCommunicator::AllGather(parts, stream, what));
    if (what == "(root)") return absl::OkStatus();
    stream.Enqueue("count", [count = count_] { ++*count; });
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>&, const std::string&) override {
    return std::make_shared<CountingCommunicator>(count_);
  }

 private:
  std::atomic<int>* const count_;
};

// What can run has run when nothing more comes for a while.
int WhenNothingMoreComes(const std::atomic<int>& count) {
  int before = -1;
  while (before != count) {
    before = count;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return before;
}

// How many children are gathered while the compute stream stands still in the
// first of them.
int GatheredAhead(bool limit_all_gathers, bool forward_prefetch) {
  const Device device = CurrentDevice();
  SetComputeStreamMode(device, StreamMode::kQueued);
  std::atomic<int> gathered = 0;
  int seen = 0;
  {
    // Units of different sizes share no slot that would hold them back.
    auto root = MakeTree(6, /*growth=*/1);
    FullyShardOptions options = Options(2, BackwardPrefetch::kPre);
    options.limit_all_gathers = limit_all_gathers;
    options.forward_prefetch = forward_prefetch;
    auto mesh = OrThrow(
        DeviceMesh::Create(std::make_shared<CountingCommunicator>(&gathered)));
    auto sharded = OrThrow(FullyShard(*root, mesh, options));
    Step(*root, *sharded);  // Makes the slots.
    ComputeStream(device).Synchronize();
    gathered = 0;
    std::promise<void> gate;
    root->body = [body = root->body, &gate, device](const Variable& x) {
      ComputeStream(device).Enqueue("stand still",
                                    [&gate] { gate.get_future().wait(); });
      return body(x);
    };
    const Variable loss = SumOfSquares((*root)(CaseInput(3, kWidth, 0, 0)));
    // The host has run ahead through the whole forward.
    seen = WhenNothingMoreComes(gathered);
    gate.set_value();
    loss.Backward();
    ComputeStream(device).Synchronize();
  }
  SetComputeStreamMode(device, StreamMode::kInline);
  return seen;
}

// The same in a backward that does not reduce: reductions would hold back the
// gathers that are queued behind them.
int GatheredAheadInBackward(bool limit_all_gathers) {
  const Device device = CurrentDevice();
  SetComputeStreamMode(device, StreamMode::kQueued);
  std::atomic<int> gathered = 0;
  int seen = 0;
  {
    auto root = MakeTree(6, /*growth=*/1);
    FullyShardOptions options = Options(2, BackwardPrefetch::kPre);
    options.limit_all_gathers = limit_all_gathers;
    auto mesh = OrThrow(
        DeviceMesh::Create(std::make_shared<CountingCommunicator>(&gathered)));
    auto sharded = OrThrow(FullyShard(*root, mesh, options));
    Step(*root, *sharded);  // Makes the slots.
    const Variable loss = SumOfSquares((*root)(CaseInput(3, kWidth, 0, 0)));
    ComputeStream(device).Synchronize();
    gathered = 0;
    std::promise<void> gate;
    ComputeStream(device).Enqueue("stand still",
                                  [&gate] { gate.get_future().wait(); });
    const auto scope = sharded->NoSync();
    loss.Backward();  // The host runs ahead through all of it.
    seen = WhenNothingMoreComes(gathered);
    gate.set_value();
    ComputeStream(device).Synchronize();
  }
  SetComputeStreamMode(device, StreamMode::kInline);
  return seen;
}

// J.42.
TEST(OrderTest, LimiterHoldsInBackwardToo) {
  EXPECT_EQ(GatheredAheadInBackward(/*limit_all_gathers=*/true), 2);
  EXPECT_EQ(GatheredAheadInBackward(/*limit_all_gathers=*/false), 6);
}

TEST(OrderTest, LimiterLetsTwoUnitsBeGatheredAndNotYetReleased) {
  for (const bool prefetch : {false, true}) {
    EXPECT_EQ(GatheredAhead(/*limit_all_gathers=*/true, prefetch), 2);
    EXPECT_EQ(GatheredAhead(/*limit_all_gathers=*/false, prefetch), 6);
  }
}

}  // namespace
}  // namespace tessera
