// JSON that folders come with: of models, of their weights, and manifests.
#include <algorithm>
#include <filesystem>

#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/generation_config.h"
#include "checkpoint/huggingface/weight_index.h"
#include "checkpoint/manifest.h"
#include "tests/fuzz/fuzz_reader.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// Settings, whatever the size of the file.
constexpr int64_t kFixedBytes = int64_t{2} << 20;

std::function<bool(const std::string&)> Named(const std::string& name) {
  return [name](const std::string& path) {
    return std::filesystem::path(path).filename() == name;
  };
}

void ReadConfig(const std::string& text) {
  const auto config = ParseFolderConfig(text);
  if (!config.ok()) {
    EXPECT_LT(config.status().message().size(), 1000 + 2 * text.size());
    return;
  }
  // What is written of it is the same model.
  const auto again = ParseFolderConfig(
      FolderConfigText(config->model, DType::kBFloat16, config->text));
  ASSERT_OK(again);
  EXPECT_EQ(again->dtype, DType::kBFloat16);
  EXPECT_EQ(FolderConfigText(again->model, DType::kBFloat16),
            FolderConfigText(config->model, DType::kBFloat16));
}

void ReadGeneration(const std::string& text) {
  (void)ParseGenerationConfig(text);
}

void ReadIndex(const std::string& text) {
  const auto index = ParseWeightIndex(text, ".safetensors");
  if (!index.ok()) return;
  const auto again = ParseWeightIndex(
      SerializeWeightIndex(index->weight_map, 1, 1), ".safetensors");
  ASSERT_OK(again);
  EXPECT_EQ(again->weight_map, index->weight_map);
}

void ReadManifestText(const std::string& text) {
  const auto manifest = ParseManifest(text);
  if (!manifest.ok()) return;
  const auto again = ParseManifest(SerializeManifest(*manifest));
  ASSERT_OK(again);
  EXPECT_EQ(*again, *manifest);
}

std::vector<std::string> Manifests() {
  Manifest manifest;
  manifest.model = "gpt2";
  manifest.sharding = "2 ranks";
  manifest.state = {7, 56, 3, {{"options", "{}"}}};
  manifest.files = {{"rank_0.safetensors", 100, 0xabc},
                    {"rank_1.safetensors", 90, 0xdef}};
  manifest.tensors["a.weight"] = {
      DType::kFloat32, {3, 4}, {}, {{0, 0, 6}, {1, 6, 6}}};
  manifest.tensors["b"] = {DType::kBFloat16, {2, 2}, {1, 0}, {{1, 0, 4}}};
  manifest.tensors["empty"] = {DType::kInt64, {0, 5}, {}, {}};
  return {SerializeManifest(manifest)};
}

}  // namespace

std::vector<FuzzReader> ConfigReaders() {
  const auto reader = [](const std::string& name,
                         const std::vector<std::string>& seeds,
                         const std::vector<std::string>& words, auto read) {
    FuzzReader result = {name, {seeds, JsonWords(words), SplitJson}, read};
    result.fixed_bytes = kFixedBytes;
    return result;
  };
  const auto configs = GoldenContents("models", Named("config.json"));
  auto generation = GoldenContents("models", Named("generation_config.json"));
  generation.insert(generation.end(), configs.begin(), configs.end());
  return {
      reader("model_config", configs,
             {"\"qwen2\"",
              "\"gpt2\"",
              "\"llama\"",
              "\"mistral\"",
              "\"qwen3\"",
              "\"rope_scaling\":",
              "\"rope_parameters\":",
              "\"rope_type\":",
              "\"yarn\"",
              "\"longrope\"",
              "\"llama3\"",
              "\"linear\"",
              "\"dynamic\"",
              "\"factor\":",
              "\"sliding_window\":",
              "\"use_sliding_window\":true,",
              "\"num_hidden_layers\":",
              "\"layer_types\":",
              "\"torch_dtype\":",
              "\"head_dim\":",
              "\"short_factor\":"},
             ReadConfig),
      reader("generation_config", generation,
             {"\"eos_token_id\":", "\"top_p\":", "\"temperature\":"},
             ReadGeneration),
      reader("weight_index",
             GoldenContents("models", Named("model.safetensors.index.json")),
             {"\"weight_map\":", "\"metadata\":", "\"total_size\":",
              "\"a.safetensors\"", "\"..safetensors\"", "\"/a.safetensors\""},
             ReadIndex),
      reader("manifest", Manifests(),
             {"\"pieces\":", "\"shape\":", "\"order\":", "\"files\":",
              "\"xxh3\":", "\"tensors\":", "\"float32\"", "[0,0,1]"},
             ReadManifestText),
  };
}

}  // namespace tessera
