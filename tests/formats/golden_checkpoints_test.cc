// Checkpoints that torch and accelerate wrote on several ranks read, whole and
// in the slices of any number of ranks, to the values that were saved. Walks
// every folder below a folder "checkpoints" of $TESSERA_GOLDEN.
#include <fstream>
#include <set>

#include "checkpoint/torch/distributed_checkpoint.h"
#include "tests/formats/golden_files.h"
#include "tests/formats/json_values.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

class GoldenCheckpointsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model =
        DistributedCheckpoint::Open(GetParam() + "/pytorch_model_fsdp_0");
    ASSERT_OK(model);
    model_ = std::make_unique<DistributedCheckpoint>(*std::move(model));
    auto optimizer = DistributedCheckpoint::Open(GetParam() + "/optimizer_0");
    ASSERT_OK(optimizer);
    optimizer_ = std::make_unique<DistributedCheckpoint>(*std::move(optimizer));
    auto expected = ExpectedTensors::Open(GetParam() + "/expected.safetensors");
    ASSERT_OK(expected);
    expected_ = std::make_unique<ExpectedTensors>(*std::move(expected));
  }

  // "model/NAME" or "optimizer/NAME/STATE" as where it stands in the folders.
  struct Place {
    const DistributedCheckpoint* checkpoint;
    std::string key;
  };
  Place PlaceOf(const std::string& name) const {
    const size_t first = name.find('/');
    if (name.substr(0, first) == "model") {
      return {model_.get(), "model." + name.substr(first + 1)};
    }
    const size_t last = name.rfind('/');
    return {optimizer_.get(), "optimizer.state." +
                                  name.substr(first + 1, last - first - 1) +
                                  "." + name.substr(last + 1)};
  }

  static std::string BytesOf(const Tensor& tensor) {
    return {static_cast<const char*>(tensor.data()),
            static_cast<size_t>(tensor.num_bytes())};
  }

  std::unique_ptr<DistributedCheckpoint> model_;
  std::unique_ptr<DistributedCheckpoint> optimizer_;
  std::unique_ptr<ExpectedTensors> expected_;
};

TEST_P(GoldenCheckpointsTest, HasTheWholeTensors) {
  std::set<std::string> model_keys;
  std::set<std::string> optimizer_keys;
  for (const SafetensorsEntry& wanted : expected_->entries()) {
    const Place place = PlaceOf(wanted.name);
    (place.checkpoint == model_.get() ? model_keys : optimizer_keys)
        .insert(place.key);
    const auto tensor = place.checkpoint->Read(place.key);
    ASSERT_OK(tensor);
    EXPECT_EQ(BytesOf(*tensor), expected_->Bytes(wanted)) << wanted.name;
    // Scalars were written as one element.
    EXPECT_TRUE(tensor->num_dims() == 0 || tensor->shape() == wanted.shape);
  }
  EXPECT_EQ(model_->metadata().tensors.size(), model_keys.size());
  EXPECT_EQ(optimizer_->metadata().tensors.size(), optimizer_keys.size());
}

TEST_P(GoldenCheckpointsTest, HasTheSlicesOfAnyNumberOfRanks) {
  for (const SafetensorsEntry& wanted : expected_->entries()) {
    const Place place = PlaceOf(wanted.name);
    const std::string whole = expected_->Bytes(wanted);
    const int64_t count = wanted.shape.num_elements();
    const int64_t bytes = wanted.type->num_bits / 8;
    for (const int64_t world_size : {1, 2, 3, 4, 7}) {
      // Of elements, not of rows: pieces start and end in the middle of rows.
      const int64_t share = (count + world_size - 1) / world_size;
      for (int64_t begin = 0; begin < count; begin += share) {
        const int64_t length = std::min(share, count - begin);
        const auto slice =
            place.checkpoint->ReadElements(place.key, begin, length);
        ASSERT_OK(slice);
        ASSERT_EQ(BytesOf(*slice), whole.substr(begin * bytes, length * bytes))
            << wanted.name << ": " << length << " from " << begin;
      }
    }
  }
}

TEST_P(GoldenCheckpointsTest, IsASourceOfWeightsByTheirPlainNames) {
  const auto weights =
      OpenDistributedWeights(GetParam() + "/pytorch_model_fsdp_0");
  ASSERT_OK(weights);
  std::set<std::string> names;
  for (const SafetensorsEntry& wanted : expected_->entries()) {
    const std::string prefix = "model/";
    if (wanted.name.rfind(prefix, 0) != 0) continue;
    const std::string name = wanted.name.substr(prefix.size());
    names.insert(name);
    const auto tensor = (*weights)->ReadElements(
        name, 0, wanted.shape.num_elements(), CpuDevice());
    ASSERT_OK(tensor);
    EXPECT_EQ(BytesOf(*tensor), expected_->Bytes(wanted)) << name;
  }
  EXPECT_EQ((*weights)->weights().size(), names.size());
}

TEST_P(GoldenCheckpointsTest, HasTheOptimizersGroups) {
  std::ifstream text(GetParam() + "/expected.json");
  const Json expected = Json::parse(text);
  const auto tree = optimizer_->ReadTree();
  ASSERT_OK(tree);
  ASSERT_NE(tree->Find("optimizer"), nullptr);
  const PickleValue* groups = tree->Find("optimizer")->Find("param_groups");
  ASSERT_NE(groups, nullptr);
  EXPECT_TRUE(JsonSays(expected["param_groups"], *groups, "param_groups"));
}

TEST_P(GoldenCheckpointsTest, ItsMetadataTakeFewTimesTheirSize) {
  for (const char* folder : {"/pytorch_model_fsdp_0", "/optimizer_0"}) {
    const auto file = MappedFile::Open(GetParam() + folder + "/.metadata");
    ASSERT_OK(file);
    const AllocationPeak peak;
    const auto metadata = ParseDistributedMetadata((*file)->bytes());
    ASSERT_OK(metadata);
    EXPECT_LE(peak.bytes(), 10 * (*file)->num_bytes());
    RecordProperty("times",
                   static_cast<int>(peak.bytes() * 10 / (*file)->num_bytes()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpointsTest,
                         ::testing::ValuesIn(GoldenCheckpoints()),
                         [](const auto& info) {
                           return GoldenTestName(info.param, info.index);
                         });

}  // namespace
}  // namespace tessera
