// A checkpoint of ours as a source of weights: every name that the model has,
// and slices of any tensor at the price of a slice.
#include "checkpoint/convert/native_weights.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/state_dict.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

// Saves `Model` from two ranks, and returns its full state dictionary.
template <typename Model, typename Config>
Values SaveTied(const std::string& folder, const Config& config) {
  Values full;
  RunRanks(2, [&](const World& world) {
    Model model(config);
    InitializeParameters(model, 3);
    const auto sharded =
        OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world))));
    ASSERT_OK(
        SaveCheckpoint(*world, Options(folder, 1), ShardedTensors(*sharded)));
    const auto dict = GetModelStateDict(*sharded);
    ASSERT_OK(dict);
    if (world->rank() != 0) return;
    for (const ModelStateDict::Entry& entry : dict->entries) {
      full[entry.name] = entry.rows.tensor.ToDoubles();
    }
  });
  return full;
}

void ExpectHolds(const std::string& path, const Values& full) {
  const auto weights = OpenWeights(path);
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().size(), full.size());
  for (const auto& [name, values] : full) {
    const auto read = weights->source->ReadElements(
        name, 0, static_cast<int64_t>(values.size()), CpuDevice());
    ASSERT_OK(read);
    EXPECT_EQ(read->ToDoubles(), values) << name;
  }
}

template <typename Model, typename Config>
void ExpectMergesToTheFullDictionary(const Config& config) {
  const std::string folder = FreshFolder("tied");
  const Values full = SaveTied<Model>(folder, config);
  EXPECT_TRUE(full.contains("lm_head.weight"));
  const std::string path = folder + "/step-00000001";
  ExpectHolds(path, full);
  for (const bool safe : {true, false}) {
    const std::string merged = absl::StrCat(folder, "-merged", safe);
    ASSERT_OK(MergeFsdpWeights(path, merged, safe));
    ExpectHolds(merged, full);
  }
}

// TIE-06.
TEST(NativeWeightsTest, ATiedModelMergesToTheFullDictionary) {
  ExpectMergesToTheFullDictionary<GPT2LMHeadModel>(SmallGpt2());
  LlamaConfig llama = SmallLlama();
  llama.tie_word_embeddings = true;
  ExpectMergesToTheFullDictionary<LlamaForCausalLM>(llama);
}

// What is saved column by column is read once for all of its slices.
TEST(NativeWeightsTest, SlicesOfAnotherOrderAreReadOnce) {
  constexpr int64_t kRows = 40, kColumns = 30;
  const std::string folder = FreshFolder("columns");
  RunRanks(3, [&](const World& world) {
    std::vector<CheckpointTensor> tensors = Pieces(*world, 0, 0);
    std::vector<float> values(kRows * kColumns / 3);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int64_t>(i + values.size() * world->rank());
      values[i] = static_cast<float>(at % kRows * kColumns + at / kRows);
    }
    for (const char* name : {"model.x", "model.y"}) {
      const auto length = static_cast<int64_t>(values.size());
      tensors.push_back({name, Tensor::FromVector(values, Shape{length}),
                         Shape{kRows, kColumns}, length * world->rank()});
      tensors.back().order = {1, 0};
    }
    ASSERT_OK(SaveCheckpoint(*world, Options(folder, 1), tensors));
  });
  const auto weights = OpenNativeWeights(folder + "/step-00000001");
  ASSERT_OK(weights);
  const auto expect = [&](const std::string& name, int64_t begin, int64_t step,
                          int64_t end) {
    for (int64_t at = begin; at < end; at += step) {
      const int64_t n = std::min(step, end - at);
      const auto slice = (*weights)->ReadElements(name, at, n, CpuDevice());
      ASSERT_OK(slice);
      EXPECT_EQ(slice->ToDoubles().front(), static_cast<double>(at));
      EXPECT_EQ(slice->ToDoubles().back(), static_cast<double>(at + n - 1));
    }
  };
  expect("x", 0, 7, kRows * kColumns);
  expect("y", 0, kRows * kColumns, kRows * kColumns);
  expect("x", 5, 3, 14);
  expect("y", 0, 100, 300);
  // What is there now is not looked at.
  const auto manifest = ReadManifest(folder + "/step-00000001");
  ASSERT_OK(manifest);
  for (const ManifestFile& file : manifest->files) {
    std::fstream(folder + "/step-00000001/" + file.name,
                 std::ios::in | std::ios::out | std::ios::binary)
        .seekp(-kRows * 8, std::ios::end)
        .write(std::string(kRows * 8, 'x').data(), kRows * 8);
  }
  expect("y", 300, 100, kRows * kColumns);
}

}  // namespace
}  // namespace tessera
