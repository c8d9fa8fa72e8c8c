// What a sharded module shows between steps, and while its units run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

using World = std::shared_ptr<Communicator>;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

Scenario MlpScenario(std::vector<int64_t> widths) {
  const int64_t in = widths[0];
  return {.make_model = [widths] { return MakeMlp(widths); },
          .train =
              [in](Module& model, Pass& pass) {
                const Variable x = CaseInput(3, in, pass.rank(), pass.step());
                pass.Backward(SumOfSquares(Case(model)(x)));
              },
          .learning_rate = 0.05};
}

// J.23: depth first, in order of registration, and a tied one once.
TEST(GatheredCases, ParametersComeInOrderOfRegistration) {
  Scenario scenario;
  scenario.num_steps = 0;
  scenario.make_model = [] {
    auto root = std::make_shared<CaseModule>("Root");
    auto b = std::make_shared<CaseModule>("B");
    auto deep = b->AddChild("deep", std::make_shared<CaseModule>("Deep"));
    const Variable table = deep->AddParameter("z", {3, 2});
    b->AddParameter("y", {2});
    auto a = std::make_shared<CaseModule>("A");
    a->AddParameter("tied", table);
    a->AddParameter("x", {4});
    root->AddChild("b", b);
    root->AddChild("a", a);
    root->AddParameter("own", {5});
    return root;
  };
  for (const WrapPolicy& policy :
       {WrapPolicy(WrapByDefault{}), WrapPolicy(WrapNothing{})}) {
    for (Mode mode : AllModes(3)) {
      mode.options.auto_wrap_policy = policy;
      RunSharded(scenario, 3, mode, [](Module&, FullyShardedModule& sharded) {
        std::vector<std::string> names;
        int64_t count = 0;
        for (const ShardedParameter& p : sharded.Parameters()) {
          names.push_back(p.name);
          count += p.global_shape.num_elements();
        }
        EXPECT_THAT(names, ElementsAre("own", "b.y", "b.deep.z", "a.x"));
        EXPECT_EQ(count, 5 + 2 + 6 + 4);
      });
    }
  }
}

// What a layer's weight looked like each time that its forward ran.
struct Seen {
  std::vector<Shape> shapes;
  std::vector<const VariableImpl*> variables;
  std::vector<std::shared_ptr<Storage>> storages;
};

std::shared_ptr<CaseModule> MakeWatched(Seen* seen) {
  auto model = MakeMlp({4, 8, 8, 2});
  CaseModule& layer = Case(*model->Children()[1].module);
  const Variable weight = layer.own_parameters()[0].variable;
  layer.body = [seen, weight, body = layer.body](const Variable& x) {
    seen->shapes.push_back(weight.shape());
    seen->variables.push_back(weight.impl().get());
    seen->storages.push_back(weight.data().storage());
    return body(x);
  };
  FillParameters(*model);
  return model;
}

// J.29, J.34: the same variable shows the whole while its unit runs, and its
// piece between steps; the whole's memory is then given back.
TEST(GatheredCases, AParameterIsItsPieceAtRestAndWholeInForward) {
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    SCOPED_TRACE(mode.name);
    RunRanks(3, [&](const World& world) {
      Seen seen;
      const auto model = MakeWatched(&seen);
      const Variable weight =
          Case(*model->Children()[1].module).own_parameters()[0].variable;
      const auto sharded = OrThrow(
          FullyShard(*model, OrThrow(DeviceMesh::Create(world)), mode.options));
      const ShardedParameter& p = sharded->Parameters()[2];
      ASSERT_EQ(p.name, "1.weight");
      const auto expect_piece = [&] {
        EXPECT_EQ(weight.shape().num_elements(), p.length);
        EXPECT_LT(p.length, 64);
        const Shape rows{p.length / 8, 8};
        EXPECT_EQ(weight.shape(),
                  mode.options.fsdp_version == 1 ? Shape{p.length} : rows);
        const std::vector<double> fill = FillValues(64);
        const std::vector<double> values = weight.data().ToDoubles();
        for (int64_t i = 0; i < p.length; ++i) {
          EXPECT_NEAR(values[i], fill[p.begin + i], 1e-7);
        }
      };
      for (int step = 0; step < 4; ++step) {
        expect_piece();
        SumOfSquares((*model)(CaseInput(2, 4, world->rank(), step))).Backward();
        expect_piece();
        EXPECT_EQ(seen.shapes[step], (Shape{8, 8}));
        EXPECT_EQ(seen.variables[step], weight.impl().get());
        EXPECT_EQ(seen.storages[step], seen.storages[0]);
        EXPECT_TRUE(seen.storages[step]->released());
      }
      sharded->ForEachFullParameter(
          [&](const std::string& name, const Tensor& whole) {
            if (name != "1.weight") return;
            EXPECT_EQ(whole.shape(), (Shape{8, 8}));
            EXPECT_NEAR(whole.ToDoubles()[63], FillValue(63), 1e-7);
          });
    });
  }
}

// J.49: on one rank a gradient is what one process has, bit by bit.
TEST(GatheredCases, OneRankChangesNoBit) {
  const Scenario scenario = MlpScenario({4, 6, 5, 2});
  const Outcome expected = RunOracle(scenario, 1);
  for (const Mode& mode : AllModes(1)) {
    SCOPED_TRACE(mode.name);
    ExpectSame(RunSharded(scenario, 1, mode), expected, 0.0);
  }
}

// J.101: and there is nobody to talk to. Version 1 says that nothing is
// sharded.
TEST(GatheredCases, OneRankIssuesNoCollective) {
  for (const Mode& mode : AllModes(1)) {
    SCOPED_TRACE(mode.name);
    RunRanks(1, [&](const World& inner) {
      const auto world = std::make_shared<RecordingCommunicator>(inner);
      const auto model = MakeMlp({4, 3, 2});
      FillParameters(*model);
      const auto sharded = OrThrow(FullyShard(
          *model, OrThrow(DeviceMesh::Create(world, mode.mesh)), mode.options));
      for (int step = 0; step < 2; ++step) {
        SumOfSquares((*model)(CaseInput(2, 4, 0, step))).Backward();
        (void)sharded->ClipGradNorm(1.0);
      }
      EXPECT_THAT(world->recording().Lines(), IsEmpty());
      const bool says = !sharded->warnings().empty();
      const bool full_shard =
          mode.options.sharding_strategy == ShardingStrategy::kFullShard;
      if (full_shard) {
        EXPECT_TRUE(says);
      }
      if (mode.options.fsdp_version == 2) {
        EXPECT_FALSE(says);
      }
    });
  }
}

// J.55: the choice not to reduce is the whole model's, made between steps.
TEST(GatheredCases, NoSyncInsideAStepIsRefused) {
  RunRanks(2, [&](const World& world) {
    const auto model = MakeMlp({4, 3, 2});
    FillParameters(*model);
    std::unique_ptr<FullyShardedModule> sharded;
    bool asked = false;
    CaseModule& layer = Case(*model->Children()[1].module);
    layer.body = [&, body = layer.body](const Variable& x) {
      asked = true;
      EXPECT_THAT(Try([&] { (void)sharded->NoSync(); }),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "only between steps"));
      return body(x);
    };
    sharded = OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world))));
    SumOfSquares((*model)(CaseInput(2, 4, 0, 0))).Backward();
    EXPECT_TRUE(asked);
    // The step was not disturbed: it has reduced.
    EXPECT_TRUE(model->NamedParameters()[0].variable.grad().defined());
  });
}

// J.87
TEST(GatheredCases, BuffersThatAreNotPersistentKeepValueAndDevice) {
  Scenario scenario = MlpScenario({4, 3, 2});
  scenario.make_model = [] {
    auto model = MakeMlp({4, 3, 2});
    model->AddBuffer("scratch", ops::Full({3}, 0.5), /*persistent=*/false);
    return model;
  };
  for (const Mode& mode : AllModes(2)) {
    RunSharded(scenario, 2, mode, [&](Module& model, FullyShardedModule&) {
      const std::vector<NamedBuffer> buffers = model.NamedBuffers();
      ASSERT_EQ(buffers.size(), 1u);
      EXPECT_FALSE(buffers[0].persistent);
      EXPECT_EQ(buffers[0].variable.device(), CurrentDevice());
      EXPECT_THAT(buffers[0].variable.data().ToDoubles(),
                  ElementsAre(0.5, 0.5, 0.5))
          << mode.name;
    });
  }
}

}  // namespace
}  // namespace tessera
