// State dictionaries of every type go round, in memory and as files, into as
// many ranks and into others.
#include "checkpoint/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "checkpoint/optimizer_state_dict.h"
#include "checkpoint/state_dict_io.h"
#include "kernels/status.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

constexpr StateDictType kFull = StateDictType::kFullStateDict;
constexpr StateDictType kLocal = StateDictType::kLocalStateDict;
constexpr StateDictType kSharded = StateDictType::kShardedStateDict;

// A GPT-2 beside what models rarely have: a scalar, buffers, an ignored layer.
class Net : public Module {
 public:
  Net() : Module("Net") {
    scale = RegisterParameter("scale", Shape{});
    mean = RegisterBuffer("mean", Tensor::FromVector<float>({0, 0}, {2}));
    scratch = RegisterBuffer("scratch", Tensor::FromVector<float>({0}, {1}),
                             /*persistent=*/false);
    gpt = RegisterModule(
        "gpt", std::make_shared<GPT2LMHeadModel>(GPT2Config{.vocab_size = 13,
                                                            .n_positions = 8,
                                                            .n_embd = 8,
                                                            .n_layer = 1,
                                                            .n_head = 2}));
    kept = RegisterModule("kept", std::make_shared<Linear>(2, 3));
  }
  void ResetParameters(const Initializer& initializer) override {
    initializer.Constant(scale, 0.5);
  }
  std::vector<std::string> NoSplitModules() const override {
    return {"GPT2Block"};
  }
  Variable Loss(const Tensor& ids) {
    return Call([&] { return gpt->Loss(ids, ids); });
  }

  Variable scale, mean, scratch;
  std::shared_ptr<GPT2LMHeadModel> gpt;
  std::shared_ptr<Linear> kept;
};

struct NetRun {
  std::unique_ptr<Net> model = std::make_unique<Net>();
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<Optimizer> optimizer;

  NetRun(const World& world, FullyShardOptions options, uint64_t seed,
         bool sgd = false) {
    InitializeParameters(*model, seed);
    ops::Fill(model->mean.data(), static_cast<double>(seed));
    options.ignored_modules = {model->kept.get()};
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
    std::vector<ParameterGroup> groups(2);
    for (const ShardedParameter& p : sharded->Parameters()) {
      const bool decays = p.global_shape.num_dims() >= 2;
      groups[decays ? 0 : 1].parameters.push_back({p.name, p.variable});
    }
    const double scale = static_cast<double>(seed);
    groups[0].options = {.lr = 1e-2 * scale, .weight_decay = 0.1 * scale};
    groups[1].options = {.lr = 1e-2 * scale};
    for (ParameterGroup& g : groups) g.options.momentum = sgd ? 0.9 : 0;
    if (sgd) {
      optimizer = std::make_unique<Sgd>(groups);
    } else {
      optimizer = std::make_unique<AdamW>(groups);
    }
  }

  void Step(int64_t n) {
    std::vector<int64_t> ids(8);
    for (int64_t i = 0; i < 8; ++i) ids[i] = (i * 5 + n) % 13;
    const Tensor batch = Tensor::FromVector(ids, Shape{1, 8});
    sharded->ZeroGrad();
    model->Loss(batch).Backward();
    optimizer->Step();
  }

  // Everything that training depends on, whole.
  Values All() const {
    Values values;
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          values[name] = whole.ToDoubles();
        });
    values["mean"] = model->mean.data().ToDoubles();
    std::map<std::string, std::map<std::string, Tensor>> states;
    for (const NamedOptimizerState& s : optimizer->NamedState()) {
      if (const auto* step = std::get_if<int64_t>(&s.value)) {
        values[s.parameter + "/step"] = {static_cast<double>(*step)};
      } else {
        states[s.state][s.parameter] = std::get<Tensor>(s.value);
      }
    }
    for (const auto& entry : states) {
      const std::string& state = entry.first;
      const std::map<std::string, Tensor>& tensors = entry.second;
      sharded->ForEachFullTensor(
          [&](const ShardedParameter& p) {
            const auto found = tensors.find(p.name);
            return found == tensors.end() ? Tensor() : found->second;
          },
          [&](const std::string& name, const Tensor& whole) {
            values[absl::StrCat(name, "/", state)] = whole.ToDoubles();
          });
    }
    for (const ParameterGroup& g : optimizer->groups()) {
      values["options of " + g.parameters[0].name] = {
          g.options.lr, g.options.weight_decay, g.options.momentum};
    }
    return values;
  }
};

FullyShardOptions Version(int version) {
  FullyShardOptions options;
  options.fsdp_version = version;
  return options;
}

std::string Fresh(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/state_dict_" + name;
  fs::remove_all(folder);
  return folder;
}

std::vector<StateDictType> TypesOf(int version) {
  return version == 1 ? std::vector{kFull, kSharded, kLocal}
                      : std::vector{kFull, kSharded};
}

TEST(StateDictTest, EveryTypeGoesRoundInMemory) {
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3}) {
      RunRanks(world_size, [&](const World& world) {
        for (const StateDictType type : TypesOf(version)) {
          NetRun run(world, Version(version), 1);
          for (int64_t n = 0; n < 2; ++n) run.Step(n);
          NetRun other(world, Version(version), 2);
          const StateDictTypeScope scope(*run.sharded, type);
          const StateDictTypeScope other_scope(*other.sharded, type);
          const auto model = GetModelStateDict(*run.sharded);
          ASSERT_OK(model);
          const auto optimizer =
              GetOptimizerStateDict(*run.sharded, *run.optimizer);
          ASSERT_OK(optimizer);
          ASSERT_OK(LoadModelStateDict(*other.sharded, *model));
          if (type == kLocal) continue;  // Optimizers: as sharded ones.
          ASSERT_OK(LoadOptimizerStateDict(*other.sharded, *other.optimizer,
                                           *optimizer));
          EXPECT_EQ(other.All(), run.All()) << StateDictTypeName(type);
          run.Step(2);
          other.Step(2);
          EXPECT_EQ(other.All(), run.All());
        }
      });
    }
  }
}

// J.62, J.67, J.75: plain names, both of a tied pair; rank 0 alone has them.
TEST(StateDictTest, FullOnesAreWholeAndForRank0) {
  for (const int world_size : {1, 3}) {
    RunRanks(world_size, [](const World& world) {
      NetRun run(world, Version(1), 1);
      run.Step(0);
      const ModelStateDict dict = OrThrow(GetModelStateDict(*run.sharded));
      const OptimizerStateDict states =
          OrThrow(GetOptimizerStateDict(*run.sharded, *run.optimizer));
      if (world->rank() != 0) {
        EXPECT_TRUE(dict.entries.empty());
        EXPECT_TRUE(states.entries.empty() && states.param_groups.empty());
        return;
      }
      ASSERT_NE(dict.Find("gpt.lm_head.weight"), nullptr);
      EXPECT_EQ(dict.Find("gpt.lm_head.weight")->rows.tensor.storage(),
                dict.Find("gpt.transformer.wte.weight")->rows.tensor.storage());
      EXPECT_NE(dict.Find("mean"), nullptr);
      EXPECT_NE(dict.Find("kept.weight"), nullptr);
      EXPECT_EQ(dict.Find("scratch"), nullptr);
      EXPECT_EQ(states.param_groups.size(), 2u);
      for (const auto& e : states.entries) {
        if (e.state == "step") {
          EXPECT_EQ(e.rows.tensor.num_dims(), 0);
        }
      }
    });
  }
}

// J.64.
TEST(StateDictTest, ShardedOnesAreRowsThatCoverEachTensorOnce) {
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3, 5}) {
      RunRanks(world_size, [&](const World& world) {
        NetRun run(world, Version(version), 1);
        const StateDictTypeScope scope(*run.sharded, kSharded);
        const ModelStateDict dict = OrThrow(GetModelStateDict(*run.sharded));
        const auto& rows = dict.Find("gpt.transformer.wte.weight")->rows;
        const int64_t share = (13 + world_size - 1) / world_size;
        const int64_t begin = std::min<int64_t>(13, share * world->rank());
        EXPECT_THAT(rows.offsets, ElementsAre(begin, 0));
        EXPECT_EQ(rows.tensor.shape(), Shape({std::min(share, 13 - begin), 8}));
        std::vector<double> whole;
        run.sharded->ForEachFullParameter(
            [&](const std::string& name, const Tensor& tensor) {
              if (name == "gpt.transformer.wte.weight") {
                whole = tensor.ToDoubles();
              }
            });
        const std::vector<double> mine = rows.tensor.ToDoubles();
        EXPECT_EQ(mine,
                  std::vector<double>(whole.begin() + begin * 8,
                                      whole.begin() + begin * 8 +
                                          static_cast<int64_t>(mine.size())));
        EXPECT_EQ(dict.Find("kept.weight")->rows.tensor.shape(), Shape({3, 2}));
      });
    }
  }
}

// J.65.
TEST(StateDictTest, LocalOnesAreOneVectorAUnitAndFitTheirLayoutAlone) {
  ModelStateDict of_two;
  RunRanks(2, [&](const World& world) {
    NetRun run(world, Version(1), 1);
    const StateDictTypeScope scope(*run.sharded, kLocal);
    const ModelStateDict dict = OrThrow(GetModelStateDict(*run.sharded));
    std::map<std::string, int64_t> lengths;
    for (const ShardedParameter& p : run.sharded->Parameters()) {
      if (p.unit < 0) continue;
      const std::string unit = run.sharded->unit_names()[p.unit];
      lengths[unit == "(root)" ? "_flat_param" : unit + "._flat_param"] +=
          p.length;
    }
    EXPECT_GT(lengths.size(), 1u);
    for (const auto& [name, length] : lengths) {
      ASSERT_NE(dict.Find(name), nullptr) << name;
      EXPECT_EQ(dict.Find(name)->rows.tensor.shape(), Shape{length});
    }
    if (world->rank() == 0) of_two = dict;
    // Other units.
    FullyShardOptions options = Version(1);
    options.auto_wrap_policy = WrapNothing();
    NetRun other(world, options, 2);
    const Values before = other.All();
    const StateDictTypeScope other_scope(*other.sharded, kLocal);
    EXPECT_THAT(LoadModelStateDict(*other.sharded, dict),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "fits the layout that it was saved from alone"));
    EXPECT_EQ(other.All(), before);
  });
  RunRanks(3, [&](const World& world) {
    NetRun other(world, Version(1), 2);
    const StateDictTypeScope scope(*other.sharded, kLocal);
    EXPECT_THAT(LoadModelStateDict(*other.sharded, of_two),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "rank 0: state dict: a local one fits"));
  });
}

// J.66, and the same of files.
TEST(StateDictTest, WhereNothingIsShardedAllAreFull) {
  const std::string folder = Fresh("whole");
  RunRanks(2, [&](const World& world) {
    FullyShardOptions options = Version(1);
    options.sharding_strategy = ShardingStrategy::kNoShard;
    for (const StateDictType type : {kSharded, kLocal}) {
      NetRun run(world, options, 1);
      run.Step(0);
      const StateDictTypeScope scope(*run.sharded, type);
      const ModelStateDict dict = OrThrow(GetModelStateDict(*run.sharded));
      EXPECT_EQ(dict.type, kFull);
      EXPECT_EQ(dict.Find("gpt.transformer.wte.weight")->rows.tensor.shape(),
                Shape({13, 8}));
      NetRun other(world, options, 2);
      const StateDictTypeScope other_scope(*other.sharded, type);
      ASSERT_OK(SaveFsdpModel(*run.sharded, folder));
      ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder));
      ASSERT_OK(LoadFsdpModel(*other.sharded, folder));
      ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder));
      EXPECT_EQ(other.All(), run.All());
    }
  });
}

// J.68 to J.72; the moments of a fresh optimizer too, and SGD's.
TEST(StateDictFilesTest, EveryTypeGoesRoundIntoFreshRunsOfAnyNumberOfRanks) {
  for (const int version : {1, 2}) {
    for (const StateDictType type : TypesOf(version)) {
      for (const bool sgd : {false, true}) {
        const std::string folder = Fresh("files");
        Values saved;
        const StateDictFile file = {.index = sgd ? 1 : 0};
        RunRanks(3, [&](const World& world) {
          NetRun run(world, Version(version), 1, sgd);
          for (int64_t n = 0; n < 2; ++n) run.Step(n);
          const StateDictTypeScope scope(*run.sharded, type);
          ASSERT_OK(SaveFsdpModel(*run.sharded, folder, file));
          ASSERT_OK(
              SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder, file));
          NetRun same(world, Version(version), 2, sgd);
          const StateDictTypeScope same_scope(*same.sharded, type);
          ASSERT_OK(LoadFsdpModel(*same.sharded, folder, file));
          ASSERT_OK(
              LoadFsdpOptimizer(*same.sharded, *same.optimizer, folder, file));
          const Values values = run.All();
          EXPECT_EQ(same.All(), values);
          if (world->rank() == 0) saved = values;
          run.Step(2);
          same.Step(2);
          EXPECT_EQ(same.All(), run.All());
        });
        for (const int world_size : {1, 2}) {
          RunRanks(world_size, [&](const World& world) {
            for (const int other_version : {1, 2}) {
              NetRun other(world, Version(other_version), 2, sgd);
              if (type == kLocal && other_version == 2) continue;
              const StateDictTypeScope scope(*other.sharded, type);
              const absl::Status status =
                  LoadFsdpModel(*other.sharded, folder, file);
              if (type == kLocal) {
                EXPECT_FALSE(status.ok());
                continue;
              }
              ASSERT_OK(status);
              ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer,
                                          folder, file));
              EXPECT_EQ(other.All(), saved);
            }
          });
        }
      }
    }
  }
}

// J.70.
TEST(StateDictFilesTest, FilesARankAreForAsManyRanks) {
  for (const int version : {1, 2}) {
    const std::string folder = Fresh("ranks");
    const StateDictFile file = {.index = 0, .use_dcp = false};
    RunRanks(2, [&](const World& world) {
      NetRun run(world, Version(version), 1);
      run.Step(0);
      const StateDictTypeScope scope(*run.sharded, kSharded);
      ASSERT_OK(SaveFsdpModel(*run.sharded, folder, file));
      ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder, file));
      NetRun same(world, Version(version), 2);
      const StateDictTypeScope same_scope(*same.sharded, kSharded);
      ASSERT_OK(LoadFsdpModel(*same.sharded, folder, file));
      ASSERT_OK(
          LoadFsdpOptimizer(*same.sharded, *same.optimizer, folder, file));
      EXPECT_EQ(same.All(), run.All());
    });
    for (const int world_size : {1, 3}) {
      RunRanks(world_size, [&](const World& world) {
        NetRun other(world, Version(version), 2);
        const Values before = other.All();
        const StateDictTypeScope scope(*other.sharded, kSharded);
        for (const absl::Status& status :
             {LoadFsdpModel(*other.sharded, folder, file),
              LoadFsdpOptimizer(*other.sharded, *other.optimizer, folder,
                                file)}) {
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("for as many ranks as saved them"));
        }
        EXPECT_EQ(other.All(), before);
      });
    }
  }
}

// J.73: a trained parameter without state, and one of another optimizer.
TEST(StateDictFilesTest, ErrorsListAllNamesAndChangeNothing) {
  for (const StateDictType type : {kFull, kSharded}) {
    const std::string folder = Fresh("errors");
    RunRanks(2, [&](const World& world) {
      NetRun run(world, Version(2), 1);
      run.Step(0);
      const StateDictTypeScope scope(*run.sharded, type);
      // Of the matrices alone.
      AdamW few({run.optimizer->groups()[0]});
      ASSERT_OK(SaveFsdpOptimizer(*run.sharded, few, folder));
      ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder,
                                  {.index = 1}));
      const Values before = run.All();
      const absl::Status missing =
          LoadFsdpOptimizer(*run.sharded, *run.optimizer, folder);
      EXPECT_THAT(std::string(missing.message()),
                  HasSubstr("missing: scale, "));
      EXPECT_THAT(std::string(missing.message()),
                  HasSubstr("gpt.transformer.ln_f.bias"));
      EXPECT_EQ(run.All(), before);
      const absl::Status unexpected =
          LoadFsdpOptimizer(*run.sharded, few, folder, {.index = 1});
      EXPECT_THAT(std::string(unexpected.message()),
                  HasSubstr("unexpected: gpt.transformer.h.0.attn"));
      EXPECT_FALSE(LoadFsdpModel(*run.sharded, folder).ok());
    });
  }
}

// J.69: the parent, or the very folder, whatever the parent is called.
TEST(StateDictFilesTest, NamesAndFolders) {
  EXPECT_EQ(ModelFileName(kFull, {}, 2), "pytorch_model_fsdp.bin");
  EXPECT_EQ(ModelFileName(kFull, {.index = 1}, 2), "pytorch_model_fsdp_1.bin");
  EXPECT_EQ(ModelFileName(kLocal, {}, 2), "pytorch_model_fsdp_rank2.bin");
  EXPECT_EQ(ModelFileName(kLocal, {.index = 1}, 2),
            "pytorch_model_fsdp_1_rank2.bin");
  EXPECT_EQ(ModelFileName(kSharded, {}, 2), "pytorch_model_fsdp_0");
  EXPECT_EQ(ModelFileName(kSharded, {1, false}, 2),
            "pytorch_model_fsdp_1_rank2.bin");
  EXPECT_EQ(OptimizerFileName(kFull, {}, 2), "optimizer.bin");
  EXPECT_EQ(OptimizerFileName(kFull, {.index = 1}, 2), "optimizer_1.bin");
  EXPECT_EQ(OptimizerFileName(kLocal, {}, 2), "optimizer_0");
  EXPECT_EQ(OptimizerFileName(kSharded, {.index = 1}, 2), "optimizer_1");
  EXPECT_EQ(OptimizerFileName(kSharded, {0, false}, 2),
            "optimizer_0_rank2.bin");
  const std::string folder = Fresh("pytorch_model_fsdp_0_and_optimizer_0");
  RunRanks(2, [&](const World& world) {
    NetRun run(world, Version(2), 1);
    run.Step(0);
    ASSERT_OK(SaveFsdpModel(*run.sharded, folder));
    ASSERT_OK(SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder));
    for (const bool inner : {false, true}) {
      NetRun other(world, Version(2), 2);
      ASSERT_OK(LoadFsdpModel(
          *other.sharded, folder + (inner ? "/pytorch_model_fsdp_0/" : "")));
      ASSERT_OK(LoadFsdpOptimizer(*other.sharded, *other.optimizer,
                                  folder + (inner ? "/optimizer_0" : "")));
      EXPECT_EQ(other.All(), run.All());
    }
  });
  for (const char* name : {"/pytorch_model_fsdp_0", "/optimizer_0"}) {
    for (const char* file : {"/.metadata", "/__0_0.distcp", "/__1_0.distcp"}) {
      EXPECT_TRUE(fs::exists(folder + name + file));
    }
  }
}

}  // namespace
}  // namespace tessera
