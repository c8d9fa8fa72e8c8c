// Folders that transformers saved, read into any number of ranks and written
// again: every tensor keeps its bits. Walks every folder below $TESSERA_GOLDEN.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/torch/torch_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/ops/elementwise.h"
#include "tests/numerics/golden_model.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using World = std::shared_ptr<Communicator>;
using Bytes = std::map<std::string, std::string>;  // Of tensors, by name.

std::string BytesOf(const Tensor& tensor) {
  const Tensor whole = ops::Contiguous(tensor);
  ComputeStream(whole.device()).Synchronize();
  return {static_cast<const char*>(whole.data()),
          static_cast<size_t>(whole.num_bytes())};
}

// All tensors of a folder as they stand in its files.
Bytes ReadBytes(const std::string& folder) {
  Bytes bytes;
  const FolderWeights weights = OrThrow(OpenFolderWeights(folder));
  for (const auto& [name, weight] : weights.source->weights()) {
    bytes[name] = BytesOf(OrThrow(weights.source->ReadElements(
        name, 0, weight.shape.num_elements(), CurrentDevice())));
  }
  return bytes;
}

struct ShardedFolder {
  FolderConfig config;
  std::shared_ptr<CausalLM> model;
  std::unique_ptr<FullyShardedModule> sharded;

  ShardedFolder(const std::string& folder, const World& world, int version)
      : config(OrThrow(ReadFolderConfig(folder))) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = OrThrow(MakeModel(config.model));
      model->To(config.dtype.value_or(DType::kFloat32));
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    options.param_init_fn = ZeroStartValues;
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  }

  Bytes Gathered() const {
    Bytes bytes;
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          bytes[name] = BytesOf(whole);
        });
    return bytes;
  }

  SaveFolderOptions Options(int64_t max_shard_bytes) const {
    SaveFolderOptions options;
    options.dtype = config.dtype;
    options.max_shard_bytes = max_shard_bytes;
    options.texts["config.json"] = FolderConfigText(
        config.model, config.dtype.value_or(DType::kFloat32), config.text);
    return options;
  }
};

// The same weights as pytorch_model.bin, in one file or one a tensor.
void WriteBinFolder(const std::string& from, const std::string& to,
                    bool many_files) {
  fs::remove_all(to);
  ASSERT_OK(MakeFolders(to));
  fs::copy(from + "/config.json", to + "/config.json");
  const FolderWeights weights = OrThrow(OpenFolderWeights(from));
  std::vector<std::vector<TensorSpec>> files(1);
  std::string map;
  for (const auto& [name, weight] : weights.source->weights()) {
    if (many_files && !files.back().empty()) files.emplace_back();
    files.back().push_back({name, *weight.dtype, weight.shape});
    map += (map.empty() ? "\"" : ",\"") + name + "\": \"part" +
           std::to_string(files.size() - 1) + ".bin\"";
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string file =
        many_files ? "part" + std::to_string(i) + ".bin" : "pytorch_model.bin";
    auto writer = TorchWriter::Create(to + "/" + file, files[i]);
    ASSERT_OK(writer);
    for (const TensorSpec& spec : files[i]) {
      ASSERT_OK(writer->WriteElements(
          spec.name, 0,
          OrThrow(weights.source->ReadElements(
              spec.name, 0, spec.shape.num_elements(), CurrentDevice()))));
    }
    ASSERT_OK(writer->Finish());
  }
  if (many_files) {
    ASSERT_OK(WriteFile(to + "/pytorch_model.bin.index.json",
                        "{\"weight_map\": {" + map + "}}"));
  }
}

using Case = std::tuple<std::string, int>;

class GoldenFoldersTest : public ::testing::TestWithParam<Case> {
 protected:
  const std::string& folder() const { return std::get<0>(GetParam()); }
  int version() const { return std::get<1>(GetParam()); }
  std::string Out(const std::string& name) const {
    const std::string out = ::testing::TempDir() + "/golden_" + name;
    fs::remove_all(out);
    return out;
  }
};

TEST_P(GoldenFoldersTest, AnyNumberOfRanksReadsAndWritesTheSameBits) {
  const Bytes wanted = ReadBytes(folder());
  const std::string out = Out("saved");
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    for (const bool rank0_reads : {false, true}) {
      const int64_t max_shard_bytes = rank0_reads ? 30000 : 1 << 30;
      RunRanks(world_size, [&](const World& world) {
        const ShardedFolder run(folder(), world, version());
        ASSERT_OK(LoadFolderWeights(*run.sharded, folder(),
                                    {.rank0_reads = rank0_reads}));
        EXPECT_EQ(run.Gathered(), wanted);
        ASSERT_OK(
            SaveModelFolder(*run.sharded, out, run.Options(max_shard_bytes)));
      });
      EXPECT_EQ(ReadBytes(out), wanted);
      EXPECT_EQ(fs::exists(out + "/model.safetensors"), !rank0_reads);
      // What was written is a folder that can be read in its turn.
      RunRanks(2, [&](const World& world) {
        const ShardedFolder run(out, world, version());
        ASSERT_OK(LoadFolderWeights(*run.sharded, out));
        EXPECT_EQ(run.Gathered(), wanted);
      });
    }
  }
}

TEST_P(GoldenFoldersTest, FilesOfTorchGiveTheSame) {
  const Bytes wanted = ReadBytes(folder());
  const std::string out = Out("bin");
  for (const bool many_files : {false, true}) {
    WriteBinFolder(folder(), out, many_files);
    for (const int world_size : {1, 3}) {
      RunRanks(world_size, [&](const World& world) {
        const ShardedFolder run(out, world, version());
        ASSERT_OK(LoadFolderWeights(*run.sharded, out,
                                    {.rank0_reads = world_size == 3}));
        EXPECT_EQ(run.Gathered(), wanted);
      });
    }
  }
}

// Split as transformers split it, a folder has the very bytes that it wrote.
TEST_P(GoldenFoldersTest, FilesAreThoseOfTransformers) {
  const bool many = fs::exists(folder() + "/model.safetensors.index.json");
  const std::string out = Out("bytes");
  RunRanks(2, [&](const World& world) {
    const ShardedFolder run(folder(), world, version());
    ASSERT_OK(LoadFolderWeights(*run.sharded, folder()));
    ASSERT_OK(SaveModelFolder(*run.sharded, out,
                              run.Options(many ? 40000 : 1 << 30)));
  });
  for (const auto& entry : fs::directory_iterator(folder())) {
    const std::string name = entry.path().filename();
    if (!IsWeightFileName(FolderFormat::kSafetensors, name)) continue;
    const auto written = ReadFile(out + "/" + name);
    ASSERT_OK(written);
    EXPECT_TRUE(*written == *ReadFile(entry.path())) << name << " differs";
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fs::path(std::get<0>(info.param)).filename();
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name + "_v" + std::to_string(std::get<1>(info.param)) + "_" +
         std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenFoldersTest,
    ::testing::Combine(::testing::ValuesIn(GoldenModelFolders()),
                       ::testing::Values(1, 2)),
    CaseName);

}  // namespace
}  // namespace tessera
