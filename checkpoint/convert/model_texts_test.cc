// A model's folder is whole: its weights with their adapter, a config that says
// what they are, the tokenizer from wherever the run has it.
#include "checkpoint/convert/model_texts.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/huggingface/write_config.h"
#include "checkpoint/manifest.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

class TensorsAsWeights final : public WeightSource {
 public:
  explicit TensorsAsWeights(Tensors tensors) : tensors_(std::move(tensors)) {
    for (const auto& [name, t] : tensors_) {
      weights_[name] = {name, DTypeName(t.dtype()), t.dtype(), t.shape(),
                        "memory"};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device /*device*/) const override {
    const Tensor& tensor = tensors_.at(weight.name);
    return tensor.Reshape({tensor.num_elements()}).Narrow(0, begin, length);
  }

  const Tensors tensors_;
};

std::string NewFolderPath(const std::string& name) {
  const std::string path = absl::StrCat(testing::TempDir(), "/texts_", name);
  fs::remove_all(path);
  return path;
}

ModelConfig Llama() {
  LlamaConfig config;
  config.vocab_size = 300;
  return config;
}

// RUN/checkpoints/step-00000003 of `tensors`, whose run had these values.
std::string Checkpoint(const std::string& run, const Tensors& tensors,
                       const ModelConfig& model,
                       const std::map<std::string, std::string>& values) {
  const std::string folder = run + "/checkpoints/step-00000003";
  EXPECT_OK(MakeFolders(run + "/checkpoints"));
  EXPECT_OK(CopyWeights(TensorsAsWeights(tensors), WeightFormat::kNative,
                        folder, {}));
  Manifest manifest = *ReadManifest(folder);
  manifest.model = SerializeModelConfig(model);
  manifest.state.values = values;
  EXPECT_OK(WriteFile(folder + "/manifest.json", SerializeManifest(manifest)));
  return folder;
}

const Tensors& Plain() {
  static const Tensors tensors = {
      {"lm_head.weight", Tensor::FromVector<float>({1, 2}, {1, 2})}};
  return tensors;
}

TEST(ModelTextsTest, AConfigSaysTheTypeOfWhatWasCast) {
  const std::string plain = R"({"model_type": "gpt2", "mine": [1, {"a": 2}])";
  const auto written = [&](const std::string& more,
                           std::optional<DType> dtype) {
    const std::string to = NewFolderPath("cast");
    CopyOptions options;
    options.dtype = dtype;
    options.texts["config.json"] = plain + more + "}";
    EXPECT_OK(CopyWeights(TensorsAsWeights(Plain()), WeightFormat::kSafetensors,
                          to, options));
    return Json::parse(*ReadFile(to + "/config.json"));
  };
  const std::string before = R"(, "torch_dtype": "float32")";
  const std::string now = R"(, "dtype": "float32")";
  EXPECT_EQ(written(before, DType::kBFloat16)["torch_dtype"], "bfloat16");
  EXPECT_FALSE(written(before, DType::kBFloat16).contains("dtype"));
  EXPECT_EQ(written(now, DType::kFloat16)["dtype"], "float16");
  EXPECT_FALSE(written(now, DType::kFloat16).contains("torch_dtype"));
  const Json both = written(before + now, DType::kBFloat16);
  EXPECT_EQ(both["dtype"], "bfloat16");
  EXPECT_EQ(both["torch_dtype"], "bfloat16");
  EXPECT_EQ(both["mine"], Json::parse(R"([1, {"a": 2}])"));
  EXPECT_EQ(written("", DType::kBFloat16)["torch_dtype"], "bfloat16");
  EXPECT_EQ(written(before, std::nullopt)["torch_dtype"], "float32");
  CopyOptions options{.dtype = DType::kFloat16};
  options.texts["config.json"] = "{";
  EXPECT_THAT(CopyWeights(TensorsAsWeights(Plain()), WeightFormat::kSafetensors,
                          NewFolderPath("cast"), options),
              StatusIs(absl::StatusCode::kInvalidArgument, "config.json"));
}

// The run's own files first, then those of the model that it went on from.
TEST(ModelTextsTest, ACheckpointHasTheTextsOfItsRun) {
  const std::string model = NewFolderPath("it's a model");
  ASSERT_OK(MakeFolders(model));
  ASSERT_OK(WriteFile(
      model + "/config.json",
      R"({"model_type": "llama", "eos_token_id": 7, "dtype": "bfloat16"})"));
  ASSERT_OK(WriteFile(model + "/tokenizer.json", "the model's"));
  ASSERT_OK(WriteFile(model + "/generation_config.json", "how"));
  const std::string run = NewFolderPath("run");
  std::string quoted = model;
  quoted.replace(quoted.find('\''), 1, "''");
  const std::string folder = Checkpoint(
      run, Plain(), Llama(),
      {{"options", absl::StrCat("lr: '1'\nmodel: '", quoted, "'\n")}});
  const auto texts = [](const std::string& path) {
    return *TextsBeside(*OpenWeights(path), path);
  };
  const ModelTexts interrupted = texts(folder + "/");
  EXPECT_THAT(interrupted.warnings, IsEmpty());
  EXPECT_EQ(interrupted.texts.at("tokenizer.json"), "the model's");
  EXPECT_EQ(interrupted.texts.at("generation_config.json"), "how");
  const Json config = Json::parse(interrupted.texts.at("config.json"));
  EXPECT_EQ(config["eos_token_id"], 7);
  EXPECT_EQ(config["vocab_size"], 300);
  EXPECT_EQ(config["torch_dtype"], "float32");  // As the weights are.
  ASSERT_OK(WriteFile(run + "/tokenizer.json", "the run's"));
  EXPECT_EQ(texts(folder).texts.at("tokenizer.json"), "the run's");
  EXPECT_EQ(texts(folder).texts.at("generation_config.json"), "how");
}

TEST(ModelTextsTest, WhatIsNowhereIsSaid) {
  const std::string run = NewFolderPath("bare");
  const std::string folder = Checkpoint(run, Plain(), Llama(), {});
  const auto texts = TextsBeside(*OpenWeights(folder), folder);
  ASSERT_OK(texts);
  ASSERT_EQ(texts->warnings.size(), 1u);
  EXPECT_THAT(texts->warnings[0],
              HasSubstr("no tokenizer.json in " + folder + " or "));
  EXPECT_THAT(texts->warnings[0], HasSubstr(run));
  // Of bytes there is none.
  GPT2Config bytes;
  bytes.vocab_size = 256;
  const std::string other = Checkpoint(NewFolderPath("b"), Plain(), bytes, {});
  EXPECT_THAT(TextsBeside(*OpenWeights(other), other)->warnings, IsEmpty());
  const std::string torch = NewFolderPath("torch");
  ASSERT_OK(CopyWeights(TensorsAsWeights(Plain()), WeightFormat::kDistributed,
                        torch, {}));
  const auto none = TextsBeside(*OpenWeights(torch), torch);
  ASSERT_EQ(none->warnings.size(), 1u);
  EXPECT_THAT(none->warnings[0], HasSubstr("no config.json in " + torch));
  // A file is taken alone.
  EXPECT_THAT(TextsBeside(*OpenWeights(folder), folder)->texts.size(), 1u);
}

// weight [out 2, in 3], rank 1: + 0.5 * (10 20)^T (1 2 3).
Tensors WithAdapter(bool transposed) {
  const std::vector<float> base = {0, 0, 0, 1, 1, 1};
  return {{"a.lora_A.weight", Tensor::FromVector<float>({1, 2, 3}, {1, 3})},
          {"a.lora_B.weight", Tensor::FromVector<float>({10, 20}, {2, 1})},
          {"a.weight",
           transposed ? Tensor::FromVector<float>({0, 1, 0, 1, 0, 1}, {3, 2})
                      : Tensor::FromVector(base, {2, 3})},
          {"b.weight", Tensor::FromVector<float>({5}, {1})}};
}

// What a run with an adapter saved is read as the plain model of both.
TEST(AdaptedWeightsTest, TheAdapterIsAddedToItsWeights) {
  for (const bool transposed : {false, true}) {
    const ModelConfig model = transposed ? ModelConfig(GPT2Config()) : Llama();
    const std::string folder =
        Checkpoint(NewFolderPath("adapted"), WithAdapter(transposed), model,
                   {{"adapter", "rank 1, scale 0.5, dropout 0, layers a"}});
    const std::string merged = NewFolderPath("adapted_merged");
    std::string warning;
    MergeOptions options;
    options.warn = [&](const std::string& text) { warning = text; };
    ASSERT_OK(MergeFsdpWeights(folder, merged, true, true, options));
    EXPECT_THAT(warning, HasSubstr("a model and an adapter"));
    const auto weights = OpenWeights(merged);
    ASSERT_OK(weights);
    EXPECT_EQ(weights->source->weights().size(), 2u);
    const auto a = weights->source->ReadElements("a.weight", 0, 6, CpuDevice());
    EXPECT_EQ(a->ToDoubles(),
              (transposed ? std::vector<double>{5, 11, 10, 21, 15, 31}
                          : std::vector<double>{5, 10, 15, 11, 21, 31}));
  }
}

TEST(AdaptedWeightsTest, SlicesAreThoseOfTheWhole) {
  const std::string folder =
      Checkpoint(NewFolderPath("slices"), WithAdapter(false), Llama(),
                 {{"adapter", "rank 1, scale 9, dropout 0, layers a"},
                  {"adapter_scale", "0.5"}});
  const auto weights = OpenWeights(folder);
  ASSERT_OK(weights);
  std::vector<double> all;
  for (int i = 0; i < 6; i += 2) {
    for (const char* name : {"b.weight", "a.weight"}) {
      const int64_t n = name[0] == 'a' ? 2 : 1;
      const auto slice = weights->source->ReadElements(
          name, name[0] == 'a' ? i : 0, n, CpuDevice());
      ASSERT_OK(slice);
      if (n == 1) continue;
      for (const double x : slice->ToDoubles()) all.push_back(x);
    }
  }
  EXPECT_EQ(all, (std::vector<double>{5, 10, 15, 11, 21, 31}));
}

TEST(AdaptedWeightsTest, AnAdapterThatCannotBeAddedIsSaid) {
  const std::map<std::string, std::string> values = {{"adapter_scale", "2"}};
  const auto open = [&](const Tensors& tensors,
                        const std::map<std::string, std::string>& with) {
    const std::string folder =
        Checkpoint(NewFolderPath("no"), tensors, Llama(), with);
    return OpenWeights(folder).status();
  };
  EXPECT_THAT(open(WithAdapter(false), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "whose scale"));
  EXPECT_THAT(open(WithAdapter(true), values),
              StatusIs(absl::StatusCode::kDataLoss, "adapter of a does not"));
  for (const char* left_out :
       {"a.lora_A.weight", "a.lora_B.weight", "a.weight"}) {
    Tensors some = WithAdapter(false);
    some.erase(left_out);
    EXPECT_THAT(open(some, values),
                StatusIs(absl::StatusCode::kDataLoss, "a.lora_A.weight"))
        << left_out;
  }
}

}  // namespace
}  // namespace tessera
