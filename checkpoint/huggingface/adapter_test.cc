// Adapters in PEFT's files: what is read and refused, that it does not matter
// how a model is sharded, and that a merged folder computes the same.
#include "checkpoint/huggingface/adapter.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_writer.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/merge_adapter.h"
#include "checkpoint/huggingface/model_config.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/torch_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/lora.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using World = std::shared_ptr<Communicator>;
using TensorMap = std::map<std::string, Tensor>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/adapter_" + name;
  fs::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

LoraConfig SmallLora(bool gpt2) {
  if (gpt2) return {.rank = 3, .alpha = 5, .target_modules = {"c_attn"}};
  return {.rank = 2,
          .alpha = 6,
          .rank_stabilized = true,
          .target_modules = {"q_proj", "down_proj"}};
}

ModelConfig SmallModel(bool gpt2) {
  if (gpt2) return SmallGpt2();
  return SmallLlama();
}

// An adapted model in one process, with values everywhere.
struct Adapted {
  explicit Adapted(bool gpt2) : model(OrThrow(MakeModel(SmallModel(gpt2)))) {
    InitializeParameters(*model, 1);
    config.lora = AddLora(*model, SmallLora(gpt2));
    config.base_model = "some/base";
    InitializeLora(*model, 2);
    uint64_t seed = 40;
    for (const NamedVariable& p : model->NamedParameters()) {
      if (!p.name.ends_with("lora_B.weight")) continue;
      const int64_t n = p.variable.data().num_elements();
      ops::Copy(Tensor::FromVector(RandomValues(n, ++seed, -0.05, 0.05),
                                   p.variable.shape()),
                p.variable.data());
    }
  }

  TensorMap Values(bool adapter) const {
    TensorMap values;
    for (const NamedVariable& p : model->NamedParameters()) {
      if (IsLoraParameter(p.name) == adapter)
        values[p.name] = p.variable.data();
    }
    return values;
  }

  std::shared_ptr<CausalLM> model;
  AdapterConfig config;
};

// The same model, sharded; without values of use.
struct Sharded {
  Sharded(const World& world, bool gpt2, int version = 2) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = OrThrow(MakeModel(SmallModel(gpt2)));
      config = {AddLora(*model, SmallLora(gpt2)), "some/base"};
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  }

  void Set(const TensorMap& values) const {
    for (const auto& [name, value] : values) {
      OrThrow(sharded->SetFullParameter(
          name, Tensor::FromVector(value.ToVector<float>(), value.shape())));
    }
  }

  // On every rank.
  std::map<std::string, std::vector<double>> Values() const {
    std::map<std::string, std::vector<double>> values;
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          values[name] = whole.ToDoubles();
        });
    return values;
  }

  std::shared_ptr<CausalLM> model;
  AdapterConfig config;
  std::unique_ptr<FullyShardedModule> sharded;
};

void WriteSafetensors(const std::string& path, const TensorMap& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  auto writer = OrThrow(SafetensorsWriter::Create(path, specs));
  for (const auto& [name, tensor] : tensors) {
    OrThrow(writer.Write(name, tensor));
  }
  OrThrow(writer.Finish());
}

TensorMap WithPrefix(const TensorMap& tensors) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) {
    result["base_model.model." + name] = tensor;
  }
  return result;
}

// The file of an adapter; its configuration where there is one.
void WriteAdapter(const std::string& folder, const Adapted& adapted) {
  WriteSafetensors(folder + "/adapter_model.safetensors",
                   WithPrefix(adapted.Values(true)));
  ASSERT_OK(WriteFile(folder + "/adapter_config.json",
                      AdapterConfigText(adapted.config, false)));
}

void ExpectSameAdapter(const std::map<std::string, std::vector<double>>& values,
                       const TensorMap& wanted) {
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_EQ(values.at(name), tensor.ToDoubles()) << name;
  }
}

Tensor Ids(int64_t rows, int64_t step = 0) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < rows * 9; ++i) {
    ids.push_back((7 * i * i + 11 * step + i) % kSmallVocabulary);
  }
  return Tensor::FromVector(ids, {rows, 9});
}

TEST(AdapterTest, SavedFromAnyRanksAndLoadedOnAny) {
  for (const bool gpt2 : {true, false}) {
    const Adapted plain(gpt2);
    for (const int version : {1, 2}) {
      for (const int world_size : {1, 2, 3}) {
        const std::string folder = FreshFolder("ranks");
        RunRanks(world_size, [&](const World& world) {
          const Sharded run(world, gpt2, version);
          run.Set(plain.Values(true));
          ASSERT_OK(SaveAdapter(*run.sharded, folder, run.config,
                                {{"tokenizer.json", "{}"}}));
        });
        EXPECT_TRUE(fs::exists(folder + "/tokenizer.json"));
        const auto config = ReadAdapterConfig(folder);
        ASSERT_OK(config);
        EXPECT_EQ(config->lora.scale(), plain.config.lora.scale());
        const auto weights = OpenAdapterWeights(folder);
        ASSERT_OK(weights);
        EXPECT_EQ((*weights)->weights().size(), plain.Values(true).size());

        const Adapted other(gpt2);
        for (const auto& [name, value] : other.Values(true)) {
          ops::Fill(value, 7);
        }
        ASSERT_OK(LoadAdapter(*other.model, folder));
        EXPECT_EQ((*other.model)(Ids(2)).data().ToDoubles(),
                  (*plain.model)(Ids(2)).data().ToDoubles());
        RunRanks(4 - world_size, [&](const World& world) {
          const Sharded run(world, gpt2, 3 - version);
          ASSERT_OK(LoadAdapter(*run.sharded, folder));
          ExpectSameAdapter(run.Values(), plain.Values(true));
        });
      }
    }
  }
}

TEST(AdapterTest, ReadsBinFilesAndOtherTypes) {
  const Adapted plain(true);
  const TensorMap values = WithPrefix(plain.Values(true));
  for (const bool bin : {true, false}) {
    const std::string folder = FreshFolder("types");
    TensorMap half;
    std::vector<TensorSpec> specs;
    for (const auto& [name, value] : values) {
      half[name] = ops::Cast(value, DType::kBFloat16);
      specs.push_back({name, DType::kBFloat16, value.shape()});
    }
    if (bin) {
      auto writer =
          OrThrow(TorchWriter::Create(folder + "/adapter_model.bin", specs));
      for (const auto& [name, value] : half) {
        OrThrow(writer.Write(name, value));
      }
      OrThrow(writer.Finish());
    } else {
      WriteSafetensors(folder + "/adapter_model.safetensors", half);
    }
    const Adapted loaded(true);
    ASSERT_OK(LoadAdapter(*loaded.model, folder));
    const TensorMap now = loaded.Values(true);
    for (const auto& [name, value] : plain.Values(true)) {
      EXPECT_EQ(now.at(name).dtype(), DType::kFloat32);
      EXPECT_EQ(now.at(name).ToDoubles(),
                ops::Cast(value, DType::kBFloat16).ToDoubles());
    }
  }
}

TEST(AdapterTest, RefusesFilesThatDoNotFit) {
  const std::string folder = FreshFolder("refused");
  const auto load = [&](const TensorMap& tensors) {
    WriteSafetensors(folder + "/adapter_model.safetensors", tensors);
    const Adapted adapted(true);
    const std::vector<double> before =
        (*adapted.model)(Ids(1)).data().ToDoubles();
    const absl::Status status = LoadAdapter(*adapted.model, folder);
    EXPECT_EQ((*adapted.model)(Ids(1)).data().ToDoubles(), before);
    // Ranks find the same.
    RunRanks(2, [&](const World& world) {
      const Sharded run(world, true);
      EXPECT_EQ(LoadAdapter(*run.sharded, folder).code(), status.code());
    });
    return status;
  };
  const TensorMap good = WithPrefix(Adapted(true).Values(true));
  const std::string name =
      "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight";
  TensorMap missing = good;
  missing.erase(name);
  EXPECT_THAT(load(missing),
              StatusIs(kPrecondition, "missing: transformer.h.1.attn"));
  TensorMap more = good;
  more["base_model.model.lm_head.weight"] = ops::Zeros({2});
  more["base_model.model.transformer.wpe.weight"] = ops::Zeros({2});
  EXPECT_THAT(load(more),
              StatusIs(kPrecondition,
                       "unexpected: lm_head.weight, transformer.wpe.weight"));
  TensorMap shape = good;
  shape[name] = ops::Zeros({4, 24});
  EXPECT_THAT(load(shape), StatusIs(kPrecondition, "the model wants [3, 24]"));
  TensorMap prefix = good;
  prefix["transformer.h.0.attn.c_attn.lora_C"] = ops::Zeros({2});
  EXPECT_THAT(load(prefix), StatusIs(kInvalid, "does not begin with"));
  EXPECT_OK(load(good));
  EXPECT_FALSE(LoadAdapter(*Adapted(true).model, folder + "/none").ok());
}

// The adapter that was there loads, with its own configuration.
TEST(AdapterTest, OneRanksErrorIsEveryRanksAndTheOldAdapterStays) {
  const std::string folder = FreshFolder("error");
  ASSERT_OK(WriteFile(folder + "/file", ""));
  const Adapted old(true);
  RunRanks(2, [&](const World& world) {
    const Sharded run(world, true);
    run.Set(old.Values(true));
    const absl::Status status =
        SaveAdapter(*run.sharded, folder + "/file", run.config);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rank 0"));
    ASSERT_OK(SaveAdapter(*run.sharded, folder, run.config));
    AdapterConfig other = run.config;
    other.lora.alpha = 99;
    TensorMap ones;
    for (const auto& [name, value] : old.Values(true)) {
      ones[name] = ops::Full(value.shape(), 1);
    }
    run.Set(ones);
    EXPECT_FALSE(
        SaveAdapter(*run.sharded, folder, other, {{"no/file", ""}}).ok());
    // A rank that cannot gather.
    for (const int rank_that_fails : {0, 1}) {
      for (const int request : {1, 3, 6}) {
        Allocator& allocator = AllocatorOf(CurrentDevice());
        const bool fails = world->rank() == rank_that_fails;
        if (fails) allocator.FailRequestForTest(request);
        const absl::Status lacks = SaveAdapter(*run.sharded, folder, other);
        if (fails) allocator.FailRequestForTest(0);
        EXPECT_THAT(lacks, StatusIs(absl::StatusCode::kResourceExhausted,
                                    absl::StrCat("rank ", rank_that_fails)));
      }
    }
    const Sharded loaded(world, true);
    ASSERT_OK(LoadAdapter(*loaded.sharded, folder));
    ExpectSameAdapter(loaded.Values(), old.Values(true));
  });
  EXPECT_EQ(OrThrow(ReadAdapterConfig(folder)).lora.alpha,
            old.config.lora.alpha);
}

void WriteBase(const std::string& folder, const Adapted& adapted, bool gpt2,
               const std::string& cut_prefix) {
  std::vector<TensorSpec> specs;
  TensorMap values;
  for (const auto& [name, value] : adapted.Values(false)) {
    const bool cut = name.starts_with(cut_prefix);
    values[cut ? name.substr(cut_prefix.size()) : name] = value;
  }
  for (const auto& [name, value] : values) {
    specs.push_back({name, value.dtype(), value.shape()});
  }
  const auto writer = OrThrow(FolderWriter::Create(folder, specs, {9000}));
  for (const auto& [name, value] : values) {
    OrThrow(writer->Write(name, value));
  }
  OrThrow(writer->Finish(
      {{"config.json", FolderConfigText(SmallModel(gpt2), DType::kFloat32)}}));
}

TEST(MergeAdapterTest, TheMergedFolderComputesTheSame) {
  for (const bool gpt2 : {true, false}) {
    const Adapted adapted(gpt2);
    const std::string base = FreshFolder("base");
    const std::string adapter = FreshFolder("adapter");
    const std::string output = FreshFolder("output");
    // Files of base models have no prefix.
    WriteBase(base, adapted, gpt2, gpt2 ? "transformer." : "");
    WriteAdapter(adapter, adapted);
    MergeAdapterOptions options = {base, adapter, output};
    options.save.texts = {{"config.json", *ReadFile(base + "/config.json")}};
    options.save.max_shard_bytes = 5000;
    ASSERT_OK(MergeAdapterFolder(options));
    const auto merged =
        OrThrow(MakeModel(OrThrow(ReadFolderConfig(output)).model));
    ASSERT_OK(LoadFolderWeights(*merged, output));
    const std::vector<double> wanted =
        (*adapted.model)(Ids(2)).data().ToDoubles();
    EXPECT_TRUE(AllClose((*merged)(Ids(2)).data().ToDoubles(), wanted, 1e-5));
    // In memory, bit for bit.
    MergeLora(*adapted.model);
    EXPECT_EQ((*adapted.model)(Ids(2)).data().ToDoubles(),
              (*merged)(Ids(2)).data().ToDoubles());
  }
}

TEST(MergeAdapterTest, AnAdapterOfAnotherModelIsRefused) {
  const Adapted adapted(true);
  const std::string base = FreshFolder("other_base");
  const std::string adapter = FreshFolder("other_adapter");
  const std::string output = ::testing::TempDir() + "/adapter_other_output";
  fs::remove_all(output);
  WriteBase(base, Adapted(false), false, "");
  WriteAdapter(adapter, adapted);
  EXPECT_THAT(MergeAdapterFolder({base, adapter, output}),
              StatusIs(kPrecondition, "the base has no transformer.h.0"));
  WriteBase(base, adapted, true, "");
  TensorMap half = WithPrefix(adapted.Values(true));
  half.erase(half.begin());
  WriteSafetensors(adapter + "/adapter_model.safetensors", half);
  EXPECT_THAT(MergeAdapterFolder({base, adapter, output}),
              StatusIs(kPrecondition,
                       ": transformer.h.0.attn.c_attn.lora_B lacks its other "
                       "half"));
  EXPECT_FALSE(fs::exists(output));
}

// Four steps of an adapter over `world_size` ranks that share a batch of six.
std::map<std::string, std::vector<double>> TrainedValues(int world_size,
                                                         int version,
                                                         bool gpt2) {
  const Adapted start(gpt2);
  std::map<std::string, std::vector<double>> result;
  RunRanks(world_size, [&](const World& world) {
    const Sharded run(world, gpt2, version);
    run.Set(start.Values(true));
    run.Set(start.Values(false));
    ParameterGroup group;
    group.options.lr = 1e-2;
    for (const ShardedParameter& p : run.sharded->Parameters()) {
      if (!p.variable.requires_grad()) continue;
      group.parameters.push_back({p.name, p.variable});
    }
    AdamW optimizer({group});
    const int64_t rows = 6 / world_size;
    for (int step = 0; step < 4; ++step) {
      const Tensor ids =
          ops::Contiguous(Ids(6, step).Narrow(0, world->rank() * rows, rows));
      const Variable loss =
          run.model->Loss(ids, ids, {.divisor = 6.0 * 8 / world_size});
      run.sharded->ZeroGrad();
      loss.Backward();
      run.sharded->ClipGradNorm(1.0);
      optimizer.Step();
    }
    // Nothing is kept, or was reduced, of what is frozen.
    for (const NamedOptimizerState& s : optimizer.NamedState()) {
      EXPECT_TRUE(IsLoraParameter(s.parameter)) << s.parameter;
    }
    for (const ShardedParameter& p : run.sharded->Parameters()) {
      EXPECT_EQ(p.variable.grad().defined(), IsLoraParameter(p.name)) << p.name;
    }
    const auto values = run.Values();
    if (world->rank() == 0) result = values;
  });
  for (const auto& [name, value] : start.Values(false)) {
    EXPECT_EQ(result.at(name), value.ToDoubles()) << name;
  }
  return result;
}

TEST(AdapterTest, TrainsOnRanksAsInOneProcess) {
  for (const bool gpt2 : {true, false}) {
    const auto wanted = TrainedValues(1, 2, gpt2);
    const TensorMap start = Adapted(gpt2).Values(true);
    for (const int version : {1, 2}) {
      for (const int world_size : {2, 3}) {
        const auto values = TrainedValues(world_size, version, gpt2);
        for (const auto& [name, value] : start) {
          EXPECT_TRUE(AllClose(values.at(name), wanted.at(name), 1e-5)) << name;
          EXPECT_NE(values.at(name), value.ToDoubles()) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
