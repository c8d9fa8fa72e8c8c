// A sharded model becomes a folder that does not depend on how it was sharded.
#include "checkpoint/huggingface/save_folder.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/huggingface/folder_weights.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using World = std::shared_ptr<Communicator>;

std::string Folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/save_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

struct ShardedGpt2 {
  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;

  explicit ShardedGpt2(const World& world, int version = 2) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = std::make_unique<GPT2LMHeadModel>(SmallGpt2());
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  }
};

// The folder's tensors against those of the same model in one process.
void ExpectHoldsStartValues(const std::string& folder,
                            std::optional<DType> dtype) {
  GPT2LMHeadModel model(SmallGpt2());
  InitializeParameters(model, 0);
  const auto weights = OpenFolderWeights(folder);
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().size(), model.NamedParameters().size());
  for (const NamedVariable& p : model.NamedParameters()) {
    const int64_t n = p.variable.data().num_elements();
    const auto tensor =
        weights->source->ReadElements(p.name, 0, n, CpuDevice());
    ASSERT_OK(tensor);
    const Tensor wanted =
        ops::Cast(p.variable.data(), dtype.value_or(DType::kFloat32));
    EXPECT_EQ(tensor->dtype(), wanted.dtype());
    EXPECT_EQ(tensor->ToDoubles(), wanted.ToDoubles()) << p.name;
  }
}

TEST(SaveFolderTest, TheSameFromAnyNumberOfRanks) {
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3, 5}) {
      for (const std::optional<DType>& dtype :
           {std::optional<DType>(), std::optional(DType::kBFloat16)}) {
        const std::string folder = Folder("ranks");
        RunRanks(world_size, [&](const World& world) {
          const ShardedGpt2 run(world, version);
          ASSERT_OK(SaveModelFolder(*run.sharded, folder,
                                    {.texts = {{"config.json", "{}"}},
                                     .dtype = dtype,
                                     .max_shard_bytes = 8000}));
        });
        ExpectHoldsStartValues(folder, dtype);
        const auto config = ReadFile(folder + "/config.json");
        ASSERT_OK(config);
        EXPECT_EQ(*config, "{}");
        EXPECT_TRUE(
            std::filesystem::exists(folder + "/model.safetensors.index.json"));
      }
    }
  }
}

// Rank 0's disk fails at the first or the last step: all ranks say so.
TEST(SaveFolderTest, OneRanksErrorIsEveryRanks) {
  const std::string folder = Folder("error");
  ASSERT_OK(MakeFolders(folder + "/config.json"));
  ASSERT_OK(WriteFile(folder + "/file", ""));
  RunRanks(3, [&](const World& world) {
    const ShardedGpt2 run(world);
    const absl::Status first =
        SaveModelFolder(*run.sharded, folder + "/file", {});
    EXPECT_FALSE(first.ok());
    EXPECT_THAT(std::string(first.message()), ::testing::HasSubstr("rank 0"));
    const absl::Status last = SaveModelFolder(
        *run.sharded, folder, {.texts = {{"config.json", "{}"}}});
    EXPECT_FALSE(last.ok());
    EXPECT_THAT(std::string(last.message()),
                ::testing::HasSubstr("config.json"));
    ASSERT_OK(SaveModelFolder(*run.sharded, folder, {}));
  });
  ExpectHoldsStartValues(folder, {});
}

TEST(SaveFolderTest, FilesBesideTheWeights) {
  const std::string folder = Folder("side");
  ASSERT_OK(MakeFolders(folder));
  for (const char* name : {"tokenizer.json", "merges.txt", "config.json",
                           "model.safetensors", "notes.md"}) {
    ASSERT_OK(WriteFile(folder + "/" + name, name));
  }
  const auto files = ReadSideFiles(folder);
  ASSERT_OK(files);
  EXPECT_EQ(*files, (std::map<std::string, std::string>{
                        {"merges.txt", "merges.txt"},
                        {"tokenizer.json", "tokenizer.json"}}));
}

}  // namespace
}  // namespace tessera
