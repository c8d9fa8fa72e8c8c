// State dictionaries when one rank lacks memory, or what is read is of another
// kind: one error on all ranks, and no rank is left waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "checkpoint/optimizer_state_dict.h"
#include "checkpoint/state_dict.h"
#include "checkpoint/state_dict_io.h"
#include "checkpoint/torch/save_distributed.h"
#include "fsdp/state_dict_type.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

constexpr StateDictType kFull = StateDictType::kFullStateDict;
constexpr StateDictType kLocal = StateDictType::kLocalStateDict;
constexpr StateDictType kSharded = StateDictType::kShardedStateDict;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

// What an embedder may write: the state of a parameter is a trace of it.
class Trace : public Optimizer {
 public:
  using Optimizer::Optimizer;
  std::vector<std::string> StateNames() const override { return {"trace"}; }

 protected:
  void StepGroup(const OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const Tensor&) override {
    for (const ParameterUpdate& u : updates) {
      const Tensor& trace = u.State("trace");
      ops::ScaleInPlace(trace, options.momentum);
      ops::AddInto(trace, u.grad.Reshape(trace.shape()));
      ops::AddInto(u.data, trace.Reshape(u.data.shape()), -options.lr);
    }
  }
};

template <typename T = AdamW>
struct TinyRun {
  TinyRun(const World& world, int version, double lr, StateDictType type) {
    InitializeParameters(model, 1);
    FullyShardOptions options;
    options.fsdp_version = version;
    sharded =
        OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world)), options));
    OrThrow(SetStateDictType(*sharded, type));
    ParameterGroup group;
    group.options = {.lr = lr, .momentum = 2 * lr};
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<T>(std::vector{group});
  }

  void Step() {
    const Tensor ids = Tensor::FromVector<int64_t>({1, 2, 3, 4}, Shape{1, 4});
    sharded->ZeroGrad();
    model.Loss(ids, ids).Backward();
    optimizer->Step();
  }

  Values All() const {
    Values values;
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          values[name] = whole.ToDoubles();
        });
    for (const NamedOptimizerState& s : optimizer->NamedState()) {
      const std::string name = absl::StrCat(s.parameter, "/", s.state);
      if (const auto* step = std::get_if<int64_t>(&s.value)) {
        values[name] = {static_cast<double>(*step)};
      } else {
        values[name] = std::get<Tensor>(s.value).ToDoubles();
      }
    }
    const OptimizerOptions& options = optimizer->groups()[0].options;
    values["options"] = {options.lr, options.momentum};
    return values;
  }

  GPT2LMHeadModel model{GPT2Config{.vocab_size = 7,
                                   .n_positions = 4,
                                   .n_embd = 4,
                                   .n_layer = 1,
                                   .n_head = 1}};
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<Optimizer> optimizer;
};

std::string Fresh(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/faults_" + name;
  fs::remove_all(folder);
  return folder;
}

// `f` with each request for memory of one rank failing in turn, until it has
// none left to fail; `asks`: it has some.
void ExpectOneErrorOfAll(const World& world,
                         const std::function<absl::Status()>& f,
                         bool asks = true) {
  Allocator& allocator = AllocatorOf(CurrentDevice());
  for (const int rank_that_fails : {0, 1}) {
    bool failed = true;
    int num_failed = -1;
    for (int request = 1; failed; request += 1 + request / 4) {
      const bool fails = world->rank() == rank_that_fails;
      if (fails) allocator.FailRequestForTest(request);
      const absl::Status status = f();
      if (fails) allocator.FailRequestForTest(0);
      const auto all =
          OrThrow(world->AllGatherBytes(status.ToString(), "compare"));
      EXPECT_EQ(all[0], all[1]);
      failed = !status.ok();
      ++num_failed;
      if (!failed) continue;
      // Ranks share the host's memory, so it may also be the other one's.
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kResourceExhausted, ": rank "));
    }
    EXPECT_TRUE(num_failed > 0 || !asks) << num_failed;
  }
}

TEST(StateDictFaultsTest, LackOfMemoryOnOneRankIsOneErrorOfAll) {
  for (const int version : {1, 2}) {
    for (const StateDictType type : {kFull, kSharded, kLocal}) {
      if (type == kLocal && version == 2) continue;
      const std::string folder = Fresh("memory");
      RunRanks(2, [&](const World& world) {
        SCOPED_TRACE(absl::StrCat(StateDictTypeName(type), " ", version));
        TinyRun run(world, version, 0.125, type);
        run.Step();
        // Before, so that there is something to read.
        ASSERT_OK(SaveFsdpModel(*run.sharded, folder));
        ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder));
        const Values before = run.All();
        const bool copies = type != kSharded || version == 1;
        ExpectOneErrorOfAll(
            world, [&] { return GetModelStateDict(*run.sharded).status(); },
            copies);
        ExpectOneErrorOfAll(
            world, [&] { return SaveFsdpModel(*run.sharded, folder); }, copies);
        ExpectOneErrorOfAll(
            world,
            [&] {
              return SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder);
            },
            copies);
        EXPECT_EQ(run.All(), before);
        ExpectOneErrorOfAll(world, [&] {
          return LoadFsdpOptimizer(*run.sharded, *run.optimizer, folder);
        });
        EXPECT_EQ(run.All(), before);
      });
    }
  }
}

TEST(StateDictFaultsTest, LackOfMemoryWhileDictionariesAreLoaded) {
  for (const int version : {1, 2}) {
    RunRanks(2, [&](const World& world) {
      TinyRun run(world, version, 0.125, kSharded);
      run.Step();
      ModelStateDict model = OrThrow(GetModelStateDict(*run.sharded));
      for (ModelStateDict::Entry& e : model.entries) {
        e.rows.tensor = ops::Cast(e.rows.tensor, DType::kFloat64);
      }
      const OptimizerStateDict states =
          OrThrow(GetOptimizerStateDict(*run.sharded, *run.optimizer));
      const Values before = run.All();
      if (version == 1) {  // Version 2 asks for nothing.
        ExpectOneErrorOfAll(
            world, [&] { return LoadModelStateDict(*run.sharded, model); });
      }
      ExpectOneErrorOfAll(world, [&] {
        return LoadOptimizerStateDict(*run.sharded, *run.optimizer, states);
      });
      EXPECT_EQ(run.All(), before);
    });
  }
}

TEST(StateDictFaultsTest, IntegersAreNoFloatingValues) {
  for (const StateDictType type : {kFull, kSharded, kLocal}) {
    RunRanks(2, [&](const World& world) {
      TinyRun run(world, 1, 0.125, type);
      const Values before = run.All();
      ModelStateDict dict = OrThrow(GetModelStateDict(*run.sharded));
      std::string name;
      if (!dict.entries.empty()) {
        ModelStateDict::Entry& last = dict.entries.back();
        name = last.name;
        last.rows.tensor = ops::Cast(last.rows.tensor, DType::kInt64);
      }
      const absl::Status status = LoadModelStateDict(*run.sharded, dict);
      EXPECT_EQ(status.code(), kPrecondition);
      EXPECT_THAT(std::string(status.message()), HasSubstr("is integer ["));
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
      EXPECT_EQ(run.All(), before);
    });
  }
}

// Numbers that no count can have.
TEST(StateDictFaultsTest, StepsAreCounts) {
  for (const StateDictType type : {kFull, kSharded}) {
    RunRanks(2, [&](const World& world) {
      TinyRun run(world, 2, 0.125, type);
      run.Step();
      const Values before = run.All();
      for (const double step : {std::nan(""), 1e300, -1.0, 0.5,
                                std::numeric_limits<double>::infinity()}) {
        OptimizerStateDict dict =
            OrThrow(GetOptimizerStateDict(*run.sharded, *run.optimizer));
        for (OptimizerStateDict::Entry& e : dict.entries) {
          if (e.state != "step") continue;
          e.rows.tensor = Tensor::FromVector<double>({step}, Shape{});
        }
        EXPECT_THAT(
            LoadOptimizerStateDict(*run.sharded, *run.optimizer, dict),
            StatusIs(kPrecondition, "the step of transformer.wte.weight is "));
        EXPECT_EQ(run.All(), before);
      }
      // Rank 0's reason is everybody's.
      OptimizerStateDict dict =
          OrThrow(GetOptimizerStateDict(*run.sharded, *run.optimizer));
      for (OptimizerStateDict::Entry& e : dict.entries) {
        if (e.state == "step") e.rows.tensor = ops::Zeros({2});
      }
      EXPECT_THAT(LoadOptimizerStateDict(*run.sharded, *run.optimizer, dict),
                  StatusIs(kPrecondition,
                           "the step of transformer.wte.weight is no number"));
    });
  }
}

// An optimizer that nobody here knows goes on as it was.
TEST(StateDictFaultsTest, AnEmbeddersOptimizerGoesRound) {
  for (const StateDictType type : {kFull, kSharded}) {
    const std::string folder = Fresh("embedder");
    RunRanks(2, [&](const World& world) {
      TinyRun<Trace> run(world, 2, 0.125, type);
      run.Step();
      ASSERT_OK(SaveFsdpModel(*run.sharded, folder));
      ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder));
      TinyRun<Trace> other(world, 2, 1, type);
      ASSERT_OK(LoadFsdpModel(*other.sharded, folder));
      ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder));
      EXPECT_EQ(other.All(), run.All());
      run.Step();
      other.Step();
      EXPECT_EQ(other.All(), run.All());
      // One that has not stepped.
      const TinyRun<Trace> fresh(world, 2, 0.5, type);
      ASSERT_OK(SaveFsdpOptimizer(*fresh.sharded, *fresh.optimizer, folder));
      ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder));
      EXPECT_EQ(other.optimizer->groups()[0].options.momentum, 1);
      EXPECT_EQ(std::get<int64_t>(other.optimizer->NamedState()[0].value), 0);
    });
  }
}

// Torch 2.3 and older keeps a group, or the list of groups, as one item.
TEST(StateDictFaultsTest, GroupsOfOlderVersionsOfTorch) {
  for (const bool whole_list : {false, true}) {
    const std::string folder = Fresh("older");
    RunRanks(2, [&](const World& world) {
      TinyRun run(world, 2, 0.125, kSharded);
      run.Step();
      const OptimizerStateDict dict =
          OrThrow(GetOptimizerStateDict(*run.sharded, *run.optimizer));
      std::vector<DistributedPiece> pieces;
      for (const OptimizerStateDict::Entry& e : dict.entries) {
        pieces.push_back({{"optimizer", "state", e.parameter, e.state},
                          e.rows.global_shape,
                          e.rows.offsets,
                          e.rows.tensor});
      }
      const auto save = [&](const PickleValue& group) {
        std::vector<DistributedValue> values;
        if (whole_list) {
          values.push_back(
              {{"optimizer", "param_groups"}, PickleList{{group}}});
        } else {
          values.push_back({{"optimizer", "param_groups", int64_t{0}}, group});
        }
        return SaveDistributed(*world, folder + "/optimizer_0", pieces, values);
      };
      ASSERT_OK(save(dict.param_groups[0]));
      TinyRun other(world, 2, 1, kSharded);
      ASSERT_OK(LoadFsdpModel(*other.sharded, [&] {
        OrThrow(SaveFsdpModel(*run.sharded, folder));
        return folder;
      }()));
      ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder));
      EXPECT_EQ(other.optimizer->groups()[0].options.lr, 0.125);
      run.Step();
      other.Step();
      EXPECT_EQ(other.sharded->Parameters()[0].variable.data().ToDoubles(),
                run.sharded->Parameters()[0].variable.data().ToDoubles());
      ASSERT_OK(save("no group"));
      EXPECT_THAT(LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder),
                  StatusIs(kPrecondition, "param_groups"));
    });
  }
}

}  // namespace
}  // namespace tessera
