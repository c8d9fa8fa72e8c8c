// Ranks that stop before the others: out of data, or by an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status.h"
#include "runtime/functions/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using World = std::shared_ptr<Communicator>;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kBound = absl::Seconds(15);

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

// Rank r has 3 + (r mod 2) batches.
bool HasBatch(int rank, int step) { return step < 3 + rank % 2; }

// HNG-04. Who has no batch left joins with no rows, and the loss is the mean
// over the ranks that have some.
TEST(UnevenCases, Hng04RanksWithoutABatchJoinWithoutRows) {
  for (const int world_size : {2, 3, 4}) {
    const auto train = [world_size](Module& model, Pass& pass) {
      int active = 0;
      for (int r = 0; r < world_size; ++r) {
        active += HasBatch(r, pass.step()) ? 1 : 0;
      }
      const int64_t rows = HasBatch(pass.rank(), pass.step()) ? 2 : 0;
      const Variable x = CaseInput(rows, 4, pass.rank(), pass.step());
      // The oracle and the engine both take the mean over all ranks.
      pass.Backward(functions::Scale(SumOfSquares(Case(model)(x)),
                                     double(world_size) / active));
    };
    Scenario scenario{.make_model =
                          [] {
                            return MakeMlp({4, 6, 2});
                          },
                      .train = train,
                      .num_steps = 4,
                      .learning_rate = 0.05};
    ExpectOracle(scenario, {world_size});
  }
}

// A model of which every rank takes steps of its own number; what it threw.
absl::Status TrainFor(int num_steps, const World& world, const Mode& mode) {
  const auto model = MakeMlp({4, 4, 4});
  FillParameters(*model);
  const auto sharded = OrThrow(
      FullyShard(*model, OrThrow(DeviceMesh::Create(world)), mode.options));
  return Try([&] {
    for (int step = 0; step < num_steps; ++step) {
      sharded->ZeroGrad();
      SumOfSquares((*model)(CaseInput(2, 4, world->rank(), step))).Backward();
      Descend(*model, 0.01);
    }
    (void)sharded->ClipGradNorm(1.0);  // What comes after training.
  });
}

// HNG-04. Else it is an error, soon, that says who is where.
TEST(UnevenCases, Hng04AStepThatARankDoesNotTakeEndsAll) {
  for (const RankKind kind : AllRankKinds()) {
    for (const Mode& mode : {FullShard(), PerParameter()}) {
      SCOPED_TRACE(absl::StrCat(RankKindName(kind), ", ", mode.name));
      const absl::Time start = absl::Now();
      RunRanksAs(kind, 2, [&](const World& world) {
        const absl::Status status = TrainFor(3 + world->rank(), world, mode);
        ASSERT_FALSE(status.ok());
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("rank 0 runs AllReduce of 'norm of gradients'"),
                  HasSubstr("rank 1 runs AllGather of '0'")));
      });
      EXPECT_LT(absl::Now() - start, kBound);
    }
  }
}

// HNG-05. Rank 1 runs its second layer first.
TEST(UnevenCases, Hng05AnotherOrderOnOneRankEndsAll) {
  for (const RankKind kind : AllRankKinds()) {
    for (const Mode& mode : AllModes(2)) {
      // Where nothing is gathered in forward, the losses are what they are.
      if (mode.mesh.shard == 1) continue;
      if (mode.options.sharding_strategy == ShardingStrategy::kNoShard)
        continue;
      SCOPED_TRACE(absl::StrCat(RankKindName(kind), ", ", mode.name));
      const absl::Time start = absl::Now();
      RunRanksAs(kind, 2, [&](const World& world) {
        CaseModule model;
        const auto first = model.AddChild("l0", MakeLinear(4, 4));
        const auto second = model.AddChild("l1", MakeLinear(4, 4));
        const bool swap = world->rank() == 1;
        model.body = [&](const Variable& x) {
          return swap ? (*first)((*second)(x)) : (*second)((*first)(x));
        };
        FillParameters(model);
        const auto sharded = OrThrow(
            FullyShard(model, OrThrow(DeviceMesh::Create(world, mode.mesh)),
                       mode.options));
        const absl::Status status = Try([&] {
          SumOfSquares(model(CaseInput(2, 4, world->rank(), 0))).Backward();
        });
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("rank 0 runs AllGather of 'l0'"),
                          HasSubstr("rank 1 runs AllGather of 'l1'")));
      });
      EXPECT_LT(absl::Now() - start, kBound);
    }
  }
}

// J.100. Rank 1 throws inside a unit; the others say in which one they were.
TEST(UnevenCases, ARankThatThrowsEndsAll) {
  for (const RankKind kind : AllRankKinds()) {
    SCOPED_TRACE(RankKindName(kind));
    const absl::Time start = absl::Now();
    const auto run = [&](const World& world) {
      const auto model = MakeMlp({4, 4, 4, 4});
      FillParameters(*model);
      CaseModule& layer = Case(*model->Children()[1].module);
      int calls = 0;
      layer.body = [&, body = layer.body](const Variable& x) {
        if (world->rank() == 1 && ++calls == 3) {
          throw Error(absl::DataLossError("sample 17 is damaged"));
        }
        return body(x);
      };
      const auto sharded =
          OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world)), {}));
      const absl::Status status = Try([&] {
        for (int step = 0; step < 5; ++step) {
          SumOfSquares((*model)(CaseInput(2, 4, 0, step))).Backward();
        }
      });
      ASSERT_FALSE(status.ok());
      if (world->rank() != 1) {
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("AllGather of '"), HasSubstr("rank 1 ended"),
                  HasSubstr("sample 17 is damaged")));
      }
      throw Error(status);
    };
    const absl::Status status = Try([&] { RunRanksAs(kind, 3, run); });
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDataLoss, "sample 17 is damaged"));
    EXPECT_LT(absl::Now() - start, kBound);
  }
}

}  // namespace
}  // namespace tessera
