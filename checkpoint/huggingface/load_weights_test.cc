// Values go from files to shards: every rank's part, converted, or nothing.
#include "checkpoint/huggingface/load_weights.h"

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/tied_head.h"
#include "checkpoint/huggingface/write_config.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using TensorMap = std::map<std::string, Tensor>;
using World = std::shared_ptr<Communicator>;

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/load_" + name;
  std::filesystem::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

// `folder`/model.safetensors with these tensors.
void WriteModel(const std::string& folder, const TensorMap& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", specs);
  ASSERT_OK(writer);
  for (const auto& [name, tensor] : tensors) {
    ASSERT_OK(writer->Write(name, tensor));
  }
  ASSERT_OK(writer->Finish());
}

// Values that tell every element from every other one.
Tensor Values(const Shape& shape, double start, DType dtype) {
  std::vector<float> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(start + 0.25 * static_cast<double>(i));
  }
  return ops::Cast(Tensor::FromVector(values, shape), dtype);
}

// Of all parameters of a small GPT-2, which is tied.
TensorMap Gpt2Values(DType dtype) {
  const GPT2LMHeadModel model(SmallGpt2());
  TensorMap tensors;
  for (const NamedVariable& p : model.NamedParameters()) {
    tensors[p.name] =
        Values(p.variable.shape(), static_cast<double>(tensors.size()), dtype);
  }
  return tensors;
}

struct ShardedGpt2 {
  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;

  explicit ShardedGpt2(const World& world, int version = 2,
                       bool from_zero = true) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = std::make_unique<GPT2LMHeadModel>(SmallGpt2());
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    if (from_zero) options.param_init_fn = ZeroStartValues;
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  }
};

void ExpectHolds(FullyShardedModule& module, const TensorMap& values) {
  size_t count = 0;
  module.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        ++count;
        EXPECT_EQ(whole.ToDoubles(), values.at(name).ToDoubles()) << name;
      });
  EXPECT_EQ(count, values.size());
}

TEST(LoadWeightsTest, EveryRankGetsItsPart) {
  const std::string folder = FreshFolder("part");
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TensorMap values = Gpt2Values(dtype);
    WriteModel(folder, values);
    for (const int world_size : {1, 2, 3, 5}) {
      for (const int version : {1, 2}) {
        for (const bool rank0_reads : {false, true}) {
          RunRanks(world_size, [&](const World& world) {
            const ShardedGpt2 run(world, version);
            ASSERT_OK(LoadFolderWeights(*run.sharded, folder,
                                        {.rank0_reads = rank0_reads}));
            ExpectHolds(*run.sharded, values);
          });
        }
      }
    }
  }
}

TEST(LoadWeightsTest, OneProcess) {
  const std::string folder = FreshFolder("one");
  const TensorMap values = Gpt2Values(DType::kFloat16);
  WriteModel(folder, values);
  GPT2LMHeadModel model(SmallGpt2());
  ASSERT_OK(LoadFolderWeights(model, folder));
  for (const NamedVariable& p : model.NamedParameters()) {
    EXPECT_EQ(p.variable.data().ToDoubles(), values.at(p.name).ToDoubles());
  }
}

TEST(LoadWeightsTest, AMetaModelHasNoPlaceForThem) {
  const std::string folder = FreshFolder("meta");
  WriteModel(folder, Gpt2Values(DType::kFloat32));
  const DeviceGuard guard(kMetaDevice);
  GPT2LMHeadModel model(SmallGpt2());
  EXPECT_THAT(LoadFolderWeights(model, folder),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "give models on the meta device memory first"));
}

// Files of base models, and files that hold what is tied twice, or under the
// head's name alone.
TEST(LoadWeightsTest, OtherNamesForTheSame) {
  const std::string folder = FreshFolder("names");
  const std::string prefix = "transformer.";
  const TensorMap plain = Gpt2Values(DType::kFloat32);
  TensorMap base, head = plain, both = plain;
  for (const auto& [name, tensor] : plain) {
    base[name.substr(prefix.size())] = tensor;
  }
  head["lm_head.weight"] = head.extract("transformer.wte.weight").mapped();
  both["lm_head.weight"] =
      Values(plain.at("transformer.wte.weight").shape(), 99, DType::kFloat32);
  for (const TensorMap& file : {base, head, both}) {
    WriteModel(folder, file);
    for (const bool rank0_reads : {false, true}) {
      RunRanks(2, [&](const World& world) {
        const ShardedGpt2 run(world);
        ASSERT_OK(LoadFolderWeights(*run.sharded, folder,
                                    {.rank0_reads = rank0_reads}));
        ExpectHolds(*run.sharded, plain);
      });
    }
  }
}

// A config that ties a head which the weights have of its own: both are kept,
// as in transformers.
TEST(LoadWeightsTest, AHeadOfItsOwnIsNotTied) {
  const std::string folder = FreshFolder("own_head");
  ASSERT_OK(
      WriteFile(folder + "/config.json", SerializeModelConfig(SmallGpt2())));
  const TensorMap plain = Gpt2Values(DType::kFloat32);
  const Tensor embedding = plain.at("transformer.wte.weight");
  TensorMap file = plain;
  const auto config_of = [&] {
    WriteModel(folder, file);
    return OrThrow(ReadConfigOfWeights(folder));
  };
  const auto is_tied = [](const FolderConfig& config) {
    return std::get<GPT2Config>(config.model).tie_word_embeddings;
  };
  EXPECT_TRUE(is_tied(config_of()));
  file["lm_head.weight"] = ops::Clone(embedding);
  EXPECT_TRUE(is_tied(config_of()));
  file["lm_head.weight"] = ops::Cast(embedding, DType::kBFloat16);
  file["transformer.wte.weight"] =
      ops::Cast(file["lm_head.weight"], DType::kFloat32);
  EXPECT_TRUE(is_tied(config_of()));
  file = plain;
  file["lm_head.weight"] = ops::Clone(embedding);
  file["lm_head.weight"].data<float>()[embedding.num_elements() - 1] += 1;
  const FolderConfig config = config_of();
  EXPECT_FALSE(is_tied(config));
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_THAT(config.warnings[0],
              ::testing::HasSubstr("\"tie_word_embeddings\""));
  GPT2LMHeadModel model(std::get<GPT2Config>(config.model));
  ASSERT_OK(LoadFolderWeights(model, folder));
  for (const NamedVariable& p : model.NamedParameters()) {
    EXPECT_EQ(p.variable.data().ToDoubles(), file.at(p.name).ToDoubles())
        << p.name;
  }
  std::filesystem::remove(folder + "/model.safetensors");
  EXPECT_TRUE(is_tied(OrThrow(ReadConfigOfWeights(folder))));
}

// CKC-12, and: one error on all ranks, which lists everything, and nothing has
// changed.
TEST(LoadWeightsTest, WhatDoesNotFitChangesNothing) {
  const std::string folder = FreshFolder("misfit");
  TensorMap file = Gpt2Values(DType::kFloat32);
  file.erase("transformer.ln_f.bias");
  file["transformer.ln_f.weight"] = Values({3}, 0, DType::kFloat32);
  file["stray"] = Values({1}, 0, DType::kFloat32);
  WriteModel(folder, file);
  for (const bool rank0_reads : {false, true}) {
    RunRanks(3, [&](const World& world) {
      ShardedGpt2 run(world, 1, /*from_zero=*/false);
      TensorMap before;
      run.sharded->ForEachFullParameter(
          [&](const std::string& name, const Tensor& whole) {
            before[name] = ops::Clone(whole);
          });
      const absl::Status status =
          LoadFolderWeights(*run.sharded, folder, {.rank0_reads = rank0_reads});
      for (const char* part :
           {"missing: transformer.ln_f.bias;", "unexpected: stray;",
            "transformer.ln_f.weight is [3], the model wants [24]",
            "load_misfit"}) {
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kFailedPrecondition, part));
      }
      ExpectHolds(*run.sharded, before);
    });
  }
}

TEST(LoadWeightsTest, WhatIsMissingMayKeepItsStartValue) {
  const std::string folder = FreshFolder("missing");
  TensorMap file = Gpt2Values(DType::kFloat32);
  file.erase("transformer.wpe.weight");
  WriteModel(folder, file);
  for (const bool rank0_reads : {false, true}) {
    RunRanks(2, [&](const World& world) {
      ShardedGpt2 run(world, 2, /*from_zero=*/false);
      TensorMap wanted = file;
      run.sharded->ForEachFullParameter(
          [&](const std::string& name, const Tensor& whole) {
            wanted.emplace(name, ops::Clone(whole));
          });
      ASSERT_OK(LoadFolderWeights(
          *run.sharded, folder,
          {.match = {.allow_missing = true}, .rank0_reads = rank0_reads}));
      ExpectHolds(*run.sharded, wanted);
    });
  }
}

// Each rank has a disk of its own.
TEST(LoadWeightsTest, OneRanksFilesAreMissing) {
  const std::string folder = FreshFolder("disk0");
  const TensorMap values = Gpt2Values(DType::kFloat32);
  WriteModel(folder, values);
  const auto folder_of = [&](const World& world) {
    return world->rank() == 0 ? folder : folder + "_of_nobody";
  };
  RunRanks(3, [&](const World& world) {
    const ShardedGpt2 run(world);
    EXPECT_THAT(LoadFolderWeights(*run.sharded, folder_of(world)),
                StatusIs(absl::StatusCode::kNotFound, "disk0_of_nobody"));
    ASSERT_OK(LoadFolderWeights(*run.sharded, folder_of(world),
                                {.rank0_reads = true}));
    ExpectHolds(*run.sharded, values);
  });
}

TEST(LoadWeightsTest, RanksMustFindTheSameTensors) {
  const std::string first = FreshFolder("same0");
  const std::string other = FreshFolder("same1");
  WriteModel(first, Gpt2Values(DType::kFloat32));
  WriteModel(other, Gpt2Values(DType::kBFloat16));
  RunRanks(2, [&](const World& world) {
    const ShardedGpt2 run(world);
    EXPECT_THAT(
        LoadFolderWeights(*run.sharded, world->rank() == 0 ? first : other),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 "rank 1 finds other tensors than rank 0"));
  });
}

// A matrix that lies column by column, and buffers.
class Odd : public Module {
 public:
  Odd() : Module("Odd") {
    RegisterParameter("matrix", Variable(ops::Zeros({7, 3}), true));
    RegisterParameter("columns",
                      Variable(ops::Zeros({5, 4}).Transpose(0, 1), true));
    RegisterBuffer("count", Tensor::FromVector<int64_t>({0, 0}, {2}));
    RegisterBuffer("scratch", ops::Zeros({2}), /*persistent=*/false);
  }
};

TEST(LoadWeightsTest, OtherOrdersOfDimsAndBuffers) {
  const std::string folder = FreshFolder("odd");
  const TensorMap values = {
      {"matrix", Values({7, 3}, 1, DType::kFloat64)},
      {"columns", Values({4, 5}, 50, DType::kFloat32)},
      {"count", Tensor::FromVector<int64_t>({4, 1LL << 40}, {2})}};
  WriteModel(folder, values);
  TensorMap parameters = values;
  parameters.erase("count");
  for (const int version : {1, 2}) {
    for (const bool rank0_reads : {false, true}) {
      RunRanks(3, [&](const World& world) {
        Odd model;
        FullyShardOptions options;
        options.fsdp_version = version;
        const auto sharded = OrThrow(
            FullyShard(model, OrThrow(DeviceMesh::Create(world)), options));
        ASSERT_OK(
            LoadFolderWeights(*sharded, folder, {.rank0_reads = rank0_reads}));
        ExpectHolds(*sharded, parameters);
        EXPECT_EQ(model.NamedBuffers()[0].variable.data().ToVector<int64_t>(),
                  (std::vector<int64_t>{4, 1LL << 40}));
      });
    }
  }
  Odd plain;
  ASSERT_OK(LoadFolderWeights(plain, folder));
  for (const NamedVariable& p : plain.NamedParameters()) {
    EXPECT_EQ(p.variable.data().ToDoubles(), values.at(p.name).ToDoubles());
  }
}

// A tensor of several chunks.
TEST(LoadWeightsTest, LargeTensorsGoInPieces) {
  class Large : public Module {
   public:
    Large() : Module("Large") { RegisterParameter("x", {2500, 3001}); }
    void ResetParameters(const Initializer&) override {}
  };
  const std::string folder = FreshFolder("large");
  const TensorMap values = {{"x", Values({2500, 3001}, 0, DType::kFloat32)}};
  WriteModel(folder, values);
  for (const bool rank0_reads : {false, true}) {
    RunRanks(2, [&](const World& world) {
      const DeviceGuard guard(CurrentDevice());
      std::unique_ptr<Large> model;
      {
        const DeviceGuard meta(kMetaDevice);
        model = std::make_unique<Large>();
      }
      FullyShardOptions options;
      options.param_init_fn = ZeroStartValues;
      const auto sharded = OrThrow(
          FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
      ASSERT_OK(
          LoadFolderWeights(*sharded, folder, {.rank0_reads = rank0_reads}));
      ExpectHolds(*sharded, values);
    });
  }
}

// One rank lacks memory at its n-th request: all ranks end with one error.
TEST(LoadWeightsTest, LackOfMemoryOnOneRankIsOneErrorOfAll) {
  const std::string folder = FreshFolder("memory");
  const TensorMap values = Gpt2Values(DType::kBFloat16);  // Converted.
  WriteModel(folder, values);
  for (const bool rank0_reads : {false, true}) {
    for (const int rank_that_fails : {0, 1}) {
      std::atomic<bool> failed = true;
      for (int request = 1; failed; request += 1 + request / 8) {
        failed = false;
        RunRanks(2, [&](const World& world) {
          const ShardedGpt2 run(world);
          if (world->rank() == rank_that_fails) {
            AllocatorOf(CurrentDevice()).FailRequestForTest(request);
          }
          const absl::Status status = LoadFolderWeights(
              *run.sharded, folder, {.rank0_reads = rank0_reads});
          if (world->rank() == rank_that_fails) {
            AllocatorOf(CurrentDevice()).FailRequestForTest(0);
          }
          if (!status.ok()) failed = true;
          const auto all =
              OrThrow(world->AllGatherBytes(status.ToString(), "compare"));
          EXPECT_EQ(all[0], all[1]);
          if (status.ok()) return;
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       absl::StrCat("rank ", rank_that_fails)));
        });
      }
    }
  }
}

TEST(LoadWeightsTest, NoSourceAtAll) {
  RunRanks(2, [&](const World& world) {
    const ShardedGpt2 run(world);
    EXPECT_THAT(LoadWeights(*run.sharded, nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, "no files"));
  });
}

}  // namespace
}  // namespace tessera
