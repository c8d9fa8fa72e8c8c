// Merging checkpoints that torch and accelerate wrote on several ranks gives
// the tensors that were saved, bit for bit. Walks every folder below a folder
// "checkpoints" of $TESSERA_GOLDEN.
#include <filesystem>
#include <memory>
#include <set>

#include "checkpoint/convert/merge.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_file.h"
#include "tests/formats/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A folder of this name that is not there.
std::string Fresh(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  return folder;
}

class GoldenMergeTest : public ::testing::TestWithParam<std::string> {
 protected:
  // "model/NAME" of what is expected, and nothing else.
  void ExpectTheModel(const std::string& output) const {
    const auto expected =
        ExpectedTensors::Open(GetParam() + "/expected.safetensors");
    ASSERT_OK(expected);
    const auto merged = OpenFolderWeights(output);
    ASSERT_OK(merged);
    const WeightSource& weights = *merged->source;
    std::set<std::string> names;
    for (const SafetensorsEntry& wanted : expected->entries()) {
      const std::string prefix = "model/";
      if (wanted.name.rfind(prefix, 0) != 0) continue;
      const std::string name = wanted.name.substr(prefix.size());
      names.insert(name);
      ASSERT_EQ(weights.weights().count(name), 1u) << name;
      EXPECT_EQ(weights.weights().at(name).dtype, wanted.type->dtype) << name;
      EXPECT_EQ(weights.weights().at(name).shape, wanted.shape) << name;
      const auto tensor = weights.ReadElements(
          name, 0, wanted.shape.num_elements(), CpuDevice());
      ASSERT_OK(tensor);
      const std::string bytes(static_cast<const char*>(tensor->data()),
                              static_cast<size_t>(tensor->num_bytes()));
      EXPECT_TRUE(bytes == expected->Bytes(wanted)) << name;
    }
    EXPECT_FALSE(names.empty());
    EXPECT_EQ(weights.weights().size(), names.size());
  }
};

TEST_P(GoldenMergeTest, TheModelInEachForm) {
  const std::string input = GetParam() + "/pytorch_model_fsdp_0";
  const std::string output = Fresh("golden_merged");
  ASSERT_OK(MergeFsdpWeights(input, output));
  EXPECT_TRUE(fs::exists(output + "/model.safetensors"));
  ExpectTheModel(output);
  const std::string bin = Fresh("golden_merged_bin");
  ASSERT_OK(MergeFsdpWeights(input, bin, /*safe_serialization=*/false));
  EXPECT_TRUE(fs::exists(bin + "/pytorch_model.bin"));
  ExpectTheModel(bin);
  const std::string sharded = Fresh("golden_merged_shards");
  ASSERT_OK(MergeFsdpWeights(input, sharded, true, false, {2'000}));
  EXPECT_TRUE(fs::exists(sharded + "/model.safetensors.index.json"));
  ExpectTheModel(sharded);
}

TEST_P(GoldenMergeTest, TheOptimizerAsItWasNested) {
  const std::string input = Fresh("golden_optimizer_0");
  fs::copy(GetParam() + "/optimizer_0", input, fs::copy_options::recursive);
  const std::string output = Fresh("golden_merged_optimizer");
  EXPECT_EQ(MergeFsdpWeights(input, output, true, true).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(output));
  const auto checkpoint = DistributedCheckpoint::Open(input);
  ASSERT_OK(checkpoint);
  const auto tree = checkpoint->ReadTree();
  ASSERT_OK(tree);
  ASSERT_OK(MergeFsdpWeights(input, output, false, true));
  EXPECT_FALSE(fs::exists(input));
  const auto file = TorchFile::Open(output + "/pytorch_model.bin");
  ASSERT_OK(file);
  const auto value = file->ReadValue();
  ASSERT_OK(value);
  ASSERT_NE(tree->Find("optimizer"), nullptr);
  EXPECT_TRUE(*value == *tree->Find("optimizer"));
}

TEST_P(GoldenMergeTest, AParentFolderIsToldWhatIsMeant) {
  const absl::Status status =
      MergeFsdpWeights(GetParam(), Fresh("golden_merged"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                               GetParam() + "/pytorch_model_fsdp_0"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                               GetParam() + "/optimizer_0"));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenMergeTest,
                         ::testing::ValuesIn(GoldenCheckpoints()),
                         [](const auto& info) {
                           return GoldenTestName(info.param, info.index);
                         });

}  // namespace
}  // namespace tessera
