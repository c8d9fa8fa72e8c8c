// Models and optimizers prepared as Accelerate does, whole values into shards,
// and the form of state dictionaries.
#include "fsdp/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fsdp/load_full_state_dict.h"
#include "fsdp/prepare_model.h"
#include "fsdp/state_dict_type.h"
#include "fsdp/switch_optimizer_parameters.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using World = std::shared_ptr<Communicator>;

GPT2Config Tiny() {
  return {.vocab_size = 13,
          .n_positions = 8,
          .n_embd = 8,
          .n_layer = 2,
          .n_head = 2};
}

std::unique_ptr<GPT2LMHeadModel> TinyModel(uint64_t seed) {
  auto model = std::make_unique<GPT2LMHeadModel>(Tiny());
  InitializeParameters(*model, seed);
  return model;
}

Tensor Batch(int64_t n) {
  std::vector<int64_t> ids(8);
  for (int64_t i = 0; i < 8; ++i) ids[i] = (i * 5 + n) % 13;
  return Tensor::FromVector(ids, Shape{1, 8});
}

std::unique_ptr<AdamW> MakeOptimizer(const Module& model) {
  ParameterGroup group = {.parameters = {}, .options = {.lr = 1e-2}};
  for (const NamedVariable& p : model.NamedParameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  return std::make_unique<AdamW>(std::vector{group});
}

template <typename Model>
void TakeStep(Model& model, Optimizer& optimizer, int64_t n) {
  optimizer.ZeroGrad();
  model.Loss(Batch(n), Batch(n)).Backward();
  optimizer.Step();
}

using Values = std::map<std::string, std::vector<double>>;

Values Gathered(FullyShardedModule& sharded) {
  Values values;
  sharded.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        values[name] = whole.ToDoubles();
      });
  return values;
}

Values ValuesOf(const Module& model) {
  Values values;
  for (const NamedVariable& p : model.NamedParameters()) {
    values[p.name] = p.variable.data().ToDoubles();
  }
  return values;
}

FullStateDict Whole(const Module& model) {
  FullStateDict dict;
  for (const NamedVariable& p : model.NamedParameters()) {
    dict[p.name] = p.variable.data();
  }
  return dict;
}

std::unique_ptr<Accelerator> MakeAccelerator(
    const World& world, const AcceleratorOptions& options = {}) {
  return OrThrow(Accelerator::Create(world, options));
}

// A buffer of each kind, an ignored module, and a parameter at the root.
class Mixed : public Module {
 public:
  Mixed() : Module("Mixed") {
    scale = RegisterParameter("scale", Shape{5, 2});
    mean = RegisterBuffer("mean", Tensor::FromVector<float>({1, 2}, {2}));
    count = RegisterBuffer("count", Tensor::FromVector<int64_t>({3}, Shape{}));
    table = RegisterBuffer("table", Tensor::FromVector<float>({4, 5, 6}, {3}),
                           /*persistent=*/false);
    inner = RegisterModule("inner", std::make_shared<Linear>(3, 4));
    kept = RegisterModule("kept", std::make_shared<Linear>(2, 2));
  }
  void ResetParameters(const Initializer& initializer) override {
    initializer.Normal(scale, "scale", 0, 1);
  }
  Variable scale, mean, count, table;
  std::shared_ptr<Linear> inner, kept;
};

TEST(StateDictTypeTest, ConfigsAreDerivedAfreshAndScopesEndInExceptionsToo) {
  RunRanks(2, [](const World& world) {
    for (const int version : {1, 2}) {
      const auto model = TinyModel(1);
      FullyShardOptions options;
      options.fsdp_version = version;
      const auto sharded = OrThrow(
          FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
      const StateDictSettings first = sharded->state_dict_settings();
      EXPECT_EQ(first.type, version == 1 ? StateDictType::kFullStateDict
                                         : StateDictType::kShardedStateDict);
      EXPECT_THROW(
          {
            const StateDictTypeScope scope(
                *sharded, StateDictType::kShardedStateDict,
                ShardedStateDictConfig{.offload_to_cpu = false});
            EXPECT_EQ(sharded->state_dict_settings().config,
                      StateDictConfig(ShardedStateDictConfig()));
            // Of the config for sharded ones nothing is left.
            ASSERT_OK(
                SetStateDictType(*sharded, StateDictType::kFullStateDict));
            EXPECT_EQ(sharded->state_dict_settings().config,
                      StateDictConfig(FullStateDictConfig{true, true}));
            throw std::runtime_error("inside");
          },
          std::runtime_error);
      EXPECT_EQ(sharded->state_dict_settings(), first);
      EXPECT_THAT(SetStateDictType(*sharded, StateDictType::kShardedStateDict,
                                   FullStateDictConfig()),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           "SHARDED_STATE_DICT wants a config of its own"));
      EXPECT_EQ(sharded->state_dict_settings(), first);
      EXPECT_EQ(SetStateDictType(*sharded, StateDictType::kLocalStateDict).ok(),
                version == 1);
    }
  });
}

TEST(StateDictTypeTest, NamesAndPlugin) {
  EXPECT_EQ(*ParseStateDictType("full_State_dict"),
            StateDictType::kFullStateDict);
  EXPECT_EQ(*ParseStateDictType("2"), StateDictType::kLocalStateDict);
  EXPECT_EQ(*ParseStateDictType("SHARDED_STATE_DICT"),
            StateDictType::kShardedStateDict);
  EXPECT_THAT(ParseStateDictType("4"),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"4\" is none of"));
  FullyShardedDataParallelPlugin plugin;
  EXPECT_EQ(plugin.StateDict()->type, StateDictType::kShardedStateDict);
  plugin.state_dict_config = ShardedStateDictConfig();
  plugin.SetStateDictType(StateDictType::kFullStateDict);
  EXPECT_EQ(plugin.StateDict()->config,
            StateDictConfig(FullStateDictConfig{true, true}));
  plugin.SetStateDictType(StateDictType::kLocalStateDict);
  EXPECT_FALSE(plugin.StateDict().ok());
}

// J.86: parameters at the root, ignored ones, and persistent buffers.
TEST(LoadFullStateDictTest, SetsEverythingFromRank0) {
  for (const int world_size : {1, 2, 3}) {
    RunRanks(world_size, [](const World& world) {
      const auto accelerator = MakeAccelerator(world);
      Mixed model;
      InitializeParameters(model, 1);
      FullyShardOptions options;
      options.ignored_modules = {model.kept.get()};
      const auto sharded =
          OrThrow(FullyShard(model, accelerator->mesh(), options));
      FullStateDict dict;
      if (world->rank() == 0) {
        Mixed source;
        InitializeParameters(source, 2);
        dict = Whole(source);
        // Converted to the model's type.
        dict["scale"] = ops::Cast(ops::Full({5, 2}, 0.5), DType::kBFloat16);
        dict["mean"] = ops::Full({2}, 7);
        dict["count"] = Tensor::FromVector<int64_t>({9}, Shape{});
      }
      ASSERT_OK(Fsdp2LoadFullStateDict(*accelerator, *sharded, dict,
                                       /*cpu_offload=*/true));
      Mixed wanted;
      InitializeParameters(wanted, 2);
      Values values = ValuesOf(wanted);
      values["scale"] = std::vector<double>(10, 0.5);
      EXPECT_EQ(Gathered(*sharded), values);
      EXPECT_THAT(model.mean.data().ToDoubles(), ElementsAre(7, 7));
      EXPECT_THAT(model.count.data().ToDoubles(), ElementsAre(9));
      EXPECT_THAT(model.table.data().ToDoubles(), ElementsAre(4, 5, 6));
      EXPECT_EQ(sharded->state_dict_settings(), DefaultStateDictSettings(2));
    });
  }
}

// J.86, I.26: one error on all ranks, before anything is changed.
TEST(LoadFullStateDictTest, ListsAllThatDoesNotFitOnAllRanks) {
  RunRanks(3, [](const World& world) {
    const auto accelerator = MakeAccelerator(world);
    Mixed model;
    InitializeParameters(model, 1);
    const auto sharded = OrThrow(FullyShard(model, accelerator->mesh(), {}));
    const Values before = Gathered(*sharded);
    FullStateDict dict;
    if (world->rank() == 0) {
      dict = Whole(model);  // Shapes of shards.
      for (auto& [name, tensor] : dict) {
        for (const ShardedParameter& p : sharded->Parameters()) {
          if (p.name == name) tensor = ops::Full(p.global_shape, 1);
        }
      }
      dict.erase("inner.bias");
      dict["scale"] = ops::Full({2, 5}, 1);
      dict["other"] = ops::Full({1}, 1);
      dict["mean"] = ops::Full({2}, 1);
    }
    const absl::Status status =
        Fsdp2LoadFullStateDict(*accelerator, *sharded, dict);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("missing: inner.bias, count"),
                      HasSubstr("unexpected: other"),
                      HasSubstr("scale is floating [2, 5], wanted float32"),
                      Not(HasSubstr("kept"))));
    EXPECT_EQ(Gathered(*sharded), before);
  });
}

// J.88: state moves along; a run that is sharded later is the same run.
TEST(SwitchOptimizerTest, MomentsFollowIntoTheShards) {
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3}) {
      RunRanks(world_size, [&](const World& world) {
        const auto plain = TinyModel(1);
        const auto plain_optimizer = MakeOptimizer(*plain);
        const auto model = TinyModel(1);
        const auto optimizer = MakeOptimizer(*model);
        for (int64_t n = 0; n < 2; ++n) {
          TakeStep(*plain, *plain_optimizer, n);
          TakeStep(*model, *optimizer, n);
        }
        AcceleratorOptions options;
        options.plugin.sharding.fsdp_version = version;
        const auto accelerator = MakeAccelerator(world, options);
        const auto sharded = accelerator->Prepare(*model, *optimizer);
        ASSERT_OK(sharded);
        for (int64_t n = 2; n < 4; ++n) {
          TakeStep(*plain, *plain_optimizer, n);
          TakeStep(*model, *optimizer, n);
        }
        const Values wanted = ValuesOf(*plain);
        for (const auto& [name, values] : Gathered(**sharded)) {
          for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(values[i], wanted.at(name)[i], 1e-5) << name;
          }
        }
      });
    }
  }
}

TEST(SwitchOptimizerTest, AParameterWithoutMappingChangesNothing) {
  RunRanks(2, [](const World& world) {
    const auto model = TinyModel(1);
    const auto optimizer = MakeOptimizer(*model);
    TakeStep(*model, *optimizer, 0);
    const auto sharded =
        OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world)), {}));
    const auto before = optimizer->NamedState();
    ParameterMapping mapping = MappingTo(*sharded);
    mapping.erase("transformer.ln_f.weight");
    mapping.erase("transformer.ln_f.bias");
    EXPECT_THAT(
        Fsdp2SwitchOptimizerParameters(*optimizer, mapping),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "transformer.ln_f.bias, transformer.ln_f.weight: has no "
                 "replacement"));
    const auto after = optimizer->NamedState();
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      const auto* tensor = std::get_if<Tensor>(&after[i].value);
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->shape(), std::get<Tensor>(before[i].value).shape());
    }
    ASSERT_OK(Fsdp2SwitchOptimizerParameters(*optimizer, MappingTo(*sharded)));
    // What is cut already stays so.
    ASSERT_OK(Fsdp2SwitchOptimizerParameters(*optimizer, MappingTo(*sharded)));
    optimizer->ZeroGrad();
    TakeStep(*model, *optimizer, 1);
  });
}

TEST(PrepareTest, AnOptimizerOfAnotherModelIsAnError) {
  RunRanks(2, [](const World& world) {
    const auto accelerator = MakeAccelerator(world);
    const auto model = TinyModel(1);
    const auto other = TinyModel(1);
    const auto optimizer = MakeOptimizer(world->rank() == 1 ? *other : *model);
    EXPECT_THAT(accelerator->Prepare(*model, *optimizer),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 1: prepare: the optimizer has transformer.wte"));
    EXPECT_EQ(accelerator->Prepared(*model), nullptr);
  });
}

// J.83, D.4.
TEST(PrepareTest, StepsComeInOrderAndTwiceIsOnce) {
  RunRanks(2, [](const World& world) {
    std::vector<std::string> steps;
    AcceleratorOptions options;
    options.mixed_precision = "bf16";
    options.plugin.cpu_ram_efficient_loading = true;
    options.on_prepare_step = [&](PrepareStep step) {
      steps.emplace_back(PrepareStepName(step));
    };
    const auto accelerator = MakeAccelerator(world, options);
    const auto model = TinyModel(1);
    const auto optimizer = MakeOptimizer(*model);
    const auto sharded = OrThrow(accelerator->Prepare(*model, *optimizer));
    std::vector<std::string> wanted = {"upcast", "snapshot", "to meta",
                                       "shard",  "load",     "restore buffers",
                                       "switch"};
    if (world->rank() != 0) wanted.erase(wanted.begin() + 1);
    EXPECT_EQ(steps, wanted);
    EXPECT_EQ(sharded->options().mixed_precision.param_dtype, DType::kBFloat16);
    steps.clear();
    EXPECT_EQ(OrThrow(Fsdp2PrepareModel(*accelerator, *model)), sharded);
    EXPECT_THAT(steps, ElementsAre());
    TakeStep(*model, *optimizer, 0);
  });
}

// J.85: frozen parameters keep their type, and so do all without a precision.
TEST(PrepareTest, TrainableParametersBecomeFloat32) {
  for (const char* precision : {"no", "bf16"}) {
    RunRanks(2, [&](const World& world) {
      const auto model = TinyModel(1);
      model->To(DType::kBFloat16);
      std::map<std::string, Variable> named;
      for (const NamedVariable& p : model->NamedParameters()) {
        named[p.name] = p.variable;
      }
      named["transformer.wpe.weight"].set_requires_grad(false);
      AcceleratorOptions options;
      options.mixed_precision = precision;
      const auto accelerator = MakeAccelerator(world, options);
      ASSERT_OK(Fsdp2PrepareModel(*accelerator, *model));
      EXPECT_EQ(
          named["transformer.ln_f.weight"].dtype(),
          precision == std::string("no") ? DType::kBFloat16 : DType::kFloat32);
      EXPECT_EQ(named["transformer.wpe.weight"].dtype(), DType::kBFloat16);
    });
  }
}

// J.84, K.3: tied, the tail is norm, embedding and head; else embedding, and
// norm with head.
TEST(PrepareTest, TheEndsOfAModelAreUnits) {
  RunRanks(2, [](const World& world) {
    const auto accelerator = MakeAccelerator(world);
    const auto tied = TinyModel(1);
    const auto optimizer = MakeOptimizer(*tied);
    const auto sharded = OrThrow(accelerator->Prepare(*tied, *optimizer));
    std::map<int, std::vector<std::string>> units;
    for (const ShardedParameter& p : sharded->Parameters()) {
      units[p.unit].push_back(p.name);
    }
    std::vector<std::vector<std::string>> groups;
    for (const auto& [unit, names] : units) groups.push_back(names);
    EXPECT_THAT(groups, Contains(ElementsAre("transformer.wte.weight",
                                             "transformer.ln_f.weight",
                                             "transformer.ln_f.bias")));
    // Trains as the plain model does.
    const auto plain = TinyModel(1);
    const auto plain_optimizer = MakeOptimizer(*plain);
    for (int64_t n = 0; n < 3; ++n) {
      TakeStep(*tied, *optimizer, n);
      TakeStep(*plain, *plain_optimizer, n);
    }
    const Values wanted = ValuesOf(*plain);
    for (const auto& [name, values] : Gathered(*sharded)) {
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], wanted.at(name)[i], 1e-5) << name;
      }
    }
    LlamaConfig config;
    config.vocab_size = 13;
    config.hidden_size = 8;
    config.intermediate_size = 12;
    config.num_hidden_layers = 1;
    config.num_attention_heads = 2;
    config.num_key_value_heads = 2;
    LlamaForCausalLM llama(config);
    InitializeParameters(llama, 1);
    const auto untied = OrThrow(Fsdp2PrepareModel(*accelerator, llama));
    std::map<std::string, int> unit_of;
    for (const ShardedParameter& p : untied->Parameters()) {
      unit_of[p.name] = p.unit;
    }
    EXPECT_EQ(unit_of["model.norm.weight"], unit_of["lm_head.weight"]);
    EXPECT_NE(unit_of["model.embed_tokens.weight"], unit_of["lm_head.weight"]);
    llama.Loss(Batch(0), Batch(0)).Backward();
    EXPECT_EQ(*untied->StateOf("lm_head.weight"), UnitState::kSharded);
  });
}

// J.82, J.87: the others hold no more than shards and one tensor, and get rank
// 0's values, of all buffers too.
TEST(PrepareTest, OnlyRank0HoldsTheModel) {
  for (const int world_size : {1, 2, 3}) {
    RunRanks(world_size, [](const World& world) {
      AcceleratorOptions options;
      options.plugin.cpu_ram_efficient_loading = true;
      options.plugin.sharding.shards_in_place = false;
      const auto accelerator = MakeAccelerator(world, options);
      std::unique_ptr<Mixed> model;
      if (world->rank() == 0) {
        model = std::make_unique<Mixed>();
        InitializeParameters(*model, 5);
        ops::Fill(model->table.data(), 8);
      } else {
        const DeviceGuard meta(kMetaDevice);
        model = std::make_unique<Mixed>();
        model->To(kMetaDevice);
      }
      const auto sharded = OrThrow(Fsdp2PrepareModel(*accelerator, *model));
      Mixed wanted;
      InitializeParameters(wanted, 5);
      EXPECT_EQ(Gathered(*sharded), ValuesOf(wanted));
      EXPECT_THAT(model->table.data().ToDoubles(), ElementsAre(8, 8, 8));
      EXPECT_THAT(model->count.data().ToDoubles(), ElementsAre(3));
      EXPECT_THAT(model->mean.data().ToDoubles(), ElementsAre(1, 2));
    });
  }
  RunRanks(2, [](const World& world) {
    AcceleratorOptions options;
    options.plugin.cpu_ram_efficient_loading = true;
    const auto accelerator = MakeAccelerator(world, options);
    const DeviceGuard meta(kMetaDevice);
    Mixed model;
    model.To(kMetaDevice);
    EXPECT_THAT(Fsdp2PrepareModel(*accelerator, model),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "rank 0 holds the values, but scale, inner.weight"));
  });
}

TEST(PrepareTest, TheOtherRanksMemoryIsShardsAndOneTensor) {
  RunRanks(4, [](const World& world) {
    AcceleratorOptions options;
    options.plugin.cpu_ram_efficient_loading = true;
    options.plugin.sharding.shards_in_place = false;
    const auto accelerator = MakeAccelerator(world, options);
    const Device device = CurrentDevice();
    GPT2Config config = Tiny();
    config.n_embd = 32;
    config.n_layer = 12;
    std::unique_ptr<GPT2LMHeadModel> model;
    if (world->rank() == 0) {
      model = std::make_unique<GPT2LMHeadModel>(config);
      InitializeParameters(*model, 5);
    } else {
      const DeviceGuard meta(kMetaDevice);
      model = std::make_unique<GPT2LMHeadModel>(config);
      model->To(kMetaDevice);
    }
    Allocator& allocator = AllocatorOf(device);
    ComputeStream(device).Synchronize();
    allocator.ResetPeak();
    const int64_t before = allocator.stats().peak_bytes;
    const int64_t whole = model->NumParameters() * 4;
    ASSERT_OK(Fsdp2PrepareModel(*accelerator, *model));
    if (world->rank() == 0) return;
    const int64_t extra = allocator.stats().peak_bytes - before;
    // A quarter, a unit (a twelfth) and a tensor; the whole is far off.
    EXPECT_LT(extra, whole / 2) << whole;
  });
}

}  // namespace
}  // namespace tessera
