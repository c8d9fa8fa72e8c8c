// Meshes with replicas whose all-reduce is put off over several micro-batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/recording_communicator.h"
#include "kernels/status.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 4;

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

bool HasReplicas(const Mode& mode) {
  return mode.mesh.replicate > 1 ||
         mode.options.sharding_strategy == ShardingStrategy::kNoShard;
}

std::vector<Mode> ModesWithReplicas() {
  std::vector<Mode> modes;
  for (const Mode& mode : AllModes(kRanks)) {
    if (HasReplicas(mode)) modes.push_back(mode);
  }
  return modes;
}

// A layer that all run, and one that rank 3 alone runs, in the first
// micro-batch. Gradients are multiples of 2^-6, which sums keep exactly.
std::shared_ptr<CaseModule> MakeModel() {
  auto model = std::make_shared<CaseModule>("Model");
  auto always = model->AddChild("always", MakeLinear(5, 3));
  auto seldom = model->AddChild("seldom", MakeLinear(5, 3));
  model->AddChild("never", MakeLinear(2, 2));
  model->set_ranks_may_differ(true);
  model->body = [=](const Variable& x) {
    const Variable y = (*always)(x);
    const bool both = x.data().ToDoubles()[0] == 2.0;
    return both ? functions::Add(y, (*seldom)(x)) : y;
  };
  return model;
}

Variable ExactInput(int rank, int micro_batch) {
  std::vector<double> values(10);
  for (int i = 0; i < 10; ++i) {
    values[i] = ((i * 5 + rank * 3 + micro_batch * 7) % 16 - 8) / 8.0;
  }
  values[0] = rank == 3 && micro_batch == 0 ? 2.0 : 0.5;
  return Variable(ops::Cast(Tensor::FromVector(values, {2, 5}, CurrentDevice()),
                            DType::kFloat32));
}

// Three micro-batches; the last reduces all, or each does. Twice, since the
// second adds to the gradients of the first.
Outcome RunMicroBatches(const Mode& mode, bool put_off) {
  const auto after = [&](Module& model, FullyShardedModule& sharded) {
    const int rank = sharded.mesh().world()->rank();
    for (int i = 0; i < 6; ++i) {
      if (put_off) sharded.set_requires_all_reduce(i % 3 == 2);
      SumOf(Case(model)(ExactInput(rank, i))).Backward();
    }
    for (const ShardedParameter& p : sharded.Parameters()) {
      const bool never = p.name.starts_with("never");
      EXPECT_EQ(p.variable.grad().defined(), !never) << p.name;
    }
  };
  return RunSharded(
      {.make_model = MakeModel, .train = [](Module&, Pass&) {}, .num_steps = 0},
      kRanks, mode, after);
}

// J.98
TEST(ReplicaCases, AnAllReducePutOffGivesTheSameBits) {
  for (const DType reduce : {DType::kFloat32, DType::kBFloat16}) {
    for (Mode mode : ModesWithReplicas()) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", DTypeName(reduce)));
      mode.options.mixed_precision.reduce_dtype = reduce;
      const Outcome plain = RunMicroBatches(mode, false);
      const Outcome put_off = RunMicroBatches(mode, true);
      EXPECT_EQ(put_off.gradients, plain.gradients);
      EXPECT_NE(plain.gradients.at("seldom.weight"),
                std::vector<double>(15, 0.0));
    }
  }
}

std::vector<std::string> ReductionsOf(CollectiveRecording& recording) {
  std::vector<std::string> lines;
  for (const std::string& line : recording.Lines()) {
    if (line.find("Reduce") != std::string::npos) lines.push_back(line);
  }
  recording.Clear();
  return lines;
}

// J.98: one all-reduce a unit, however many micro-batches there are; what the
// last one does not reach is reduced too.
TEST(ReplicaCases, OnlyTheLastMicroBatchIsAllReduced) {
  RunRanks(kRanks, [](const std::shared_ptr<Communicator>& inner) {
    auto world = std::make_shared<RecordingCommunicator>(inner);
    const auto model = MakeMlp({4, 5, 2});
    FillParameters(*model);
    FullyShardOptions options;
    options.auto_wrap_policy = WrapByClass{{"Layer"}};
    const auto sharded = OrThrow(FullyShard(
        *model,
        OrThrow(DeviceMesh::Create(
            world, {.replicate = 2, .shard = 2, .has_replicate_axis = true})),
        options));
    Module& first = *model->NamedModules()[1].module;
    const Variable x = CaseInput(3, 4, world->rank(), 0);
    world->recording().Clear();
    sharded->set_requires_all_reduce(false);
    for (int i = 0; i < 2; ++i) {
      SumOfSquares((*model)(x)).Backward();
      EXPECT_THAT(ReductionsOf(world->recording()),
                  ElementsAre("ReduceScatter 1, all-reduce put off",
                              "ReduceScatter 0, all-reduce put off"));
    }
    EXPECT_EQ(sharded->GradNorm(), 0.0);
    (void)ReductionsOf(world->recording());
    sharded->set_requires_all_reduce(true);
    const int64_t hook = first.AddPostForwardHook(
        [](Module&, const std::vector<Variable*>& outputs) {
          *outputs[0] = Variable(outputs[0]->data());
        });
    SumOfSquares((*model)(x)).Backward();
    first.RemoveForwardHook(hook);
    EXPECT_THAT(ReductionsOf(world->recording()),
                ElementsAre("ReduceScatter 1", "AllReduce 1", "ReduceScatter 0",
                            "AllReduce 0"));
    EXPECT_GT(sharded->GradNorm(), 0.0);
  });
}

// Parameters that are kept out of sharding, or whole on every rank, have no
// group to be summed in before.
TEST(ReplicaCases, WhatIsWholeIsReducedByTheLastMicroBatchAlone) {
  RunRanks(kRanks, [](const std::shared_ptr<Communicator>& inner) {
    auto world = std::make_shared<RecordingCommunicator>(inner);
    const auto model = MakeMlp({4, 5, 2});
    FillParameters(*model);
    FullyShardOptions options;
    options.auto_wrap_policy = WrapByClass{{"Layer"}};
    options.ignored_patterns = {"1"};
    const auto sharded = OrThrow(FullyShard(
        *model,
        OrThrow(DeviceMesh::Create(
            world, {.replicate = 4, .shard = 1, .has_replicate_axis = true})),
        options));
    world->recording().Clear();
    for (const bool last : {false, false, true}) {
      sharded->set_requires_all_reduce(last);
      SumOfSquares((*model)(CaseInput(3, 4, world->rank(), 0))).Backward();
      const std::vector<std::string> lines = ReductionsOf(world->recording());
      const std::vector<std::string> expected = {
          "AllReduce 0", "AllReduce ignored parameters"};
      EXPECT_EQ(lines, last ? expected : std::vector<std::string>());
    }
  });
}

// Nothing of the sums that waited is in the next step.
TEST(ReplicaCases, ABackwardThatThrewTakesWhatWasPutOffAlong) {
  for (const Mode& mode : ModesWithReplicas()) {
    SCOPED_TRACE(mode.name);
    const auto after = [](Module& model, FullyShardedModule& sharded) {
      const int rank = sharded.mesh().world()->rank();
      const auto loss = [&] {
        return SumOfSquares(Case(model)(CaseInput(3, 4, rank, 0)));
      };
      loss().Backward();
      const double norm = sharded.GradNorm();
      sharded.ZeroGrad();
      sharded.set_requires_all_reduce(false);
      loss().Backward();
      EXPECT_THROW(ThrowsInBackward(loss()).Backward(), Error);
      sharded.set_requires_all_reduce(true);
      sharded.ZeroGrad();
      loss().Backward();
      EXPECT_EQ(sharded.GradNorm(), norm);
    };
    RunSharded({.make_model =
                    [] {
                      return MakeMlp({4, 6, 5, 2});
                    },
                .train = [](Module&, Pass&) {},
                .num_steps = 0},
               kRanks, mode, after);
  }
}

TEST(ReplicaCases, WithoutReplicasThereIsNothingToPutOff) {
  for (const Mode& mode : AllModes(kRanks)) {
    if (HasReplicas(mode)) continue;
    SCOPED_TRACE(mode.name);
    RunSharded({.make_model =
                    [] {
                      return MakeMlp({4, 2});
                    },
                .train = [](Module&, Pass&) {},
                .num_steps = 0},
               kRanks, mode, [](Module&, FullyShardedModule& sharded) {
                 EXPECT_THROWS_ERROR(sharded.set_requires_all_reduce(false),
                                     absl::StatusCode::kFailedPrecondition,
                                     "there are no replicas");
               });
  }
}

}  // namespace
}  // namespace tessera
