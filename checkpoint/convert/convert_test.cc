// Weights go from every format to every other and back, bit for bit.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/convert/weight_files.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr WeightFormat kFormats[] = {
    WeightFormat::kSafetensors, WeightFormat::kTorch,
    WeightFormat::kDistributed, WeightFormat::kNative, WeightFormat::kLlmc};

// A GPT-2 of two layers, two heads, four channels, with odd sizes elsewhere.
class SmallWeights final : public WeightSource {
 public:
  explicit SmallWeights(DType dtype) {
    for (const std::string name : {"wte.weight", "wpe.weight"}) {
      Add(dtype, name, {name == "wte.weight" ? 131 : 7, 4});
    }
    for (const std::string layer : {"h.0.", "h.1."}) {
      Add(dtype, layer + "attn.c_attn.weight", {4, 12});
      Add(dtype, layer + "attn.c_attn.bias", {12});
      Add(dtype, layer + "attn.c_proj.weight", {4, 4});
      Add(dtype, layer + "mlp.c_fc.weight", {4, 16});
      Add(dtype, layer + "mlp.c_fc.bias", {16});
      Add(dtype, layer + "mlp.c_proj.weight", {16, 4});
      for (const std::string v :
           {"ln_1.weight", "ln_1.bias", "attn.c_proj.bias", "ln_2.weight",
            "ln_2.bias", "mlp.c_proj.bias"}) {
        Add(dtype, layer + v, {4});
      }
    }
    Add(dtype, "ln_f.weight", {4});
    Add(dtype, "ln_f.bias", {4});
  }

 private:
  void Add(DType dtype, const std::string& name, const Shape& shape) {
    const std::string full = "transformer." + name;
    weights_[full] = {full, DTypeName(dtype), dtype, shape, "memory"};
  }

  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device /*device*/) const override {
    const int64_t bytes = ElementBytes(*weight.dtype);
    std::string data;
    for (int64_t i = begin * bytes; i < (begin + length) * bytes; ++i) {
      data += static_cast<char>(i * 37 + weight.name.size() * 11 +
                                static_cast<size_t>(weight.name[14]));
    }
    return Tensor::FromBytes(data.data(), Shape{length}, {*weight.dtype});
  }
};

std::string NewPath(const std::string& name) {
  const std::string path = absl::StrCat(testing::TempDir(), "/convert_", name);
  fs::remove_all(path);
  return path;
}

TEST(ConvertTest, EveryFormatToEveryOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const SmallWeights weights(dtype);
    for (const WeightFormat first : kFormats) {
      const std::string from = NewPath("from");
      ASSERT_OK(CopyWeights(weights, first, from, {.num_heads = 2}));
      const auto opened = OpenWeights(from);
      ASSERT_OK(opened);
      EXPECT_EQ(opened->format, first);
      EXPECT_OK(CompareWeights(weights, *opened->source));
      for (const WeightFormat second : kFormats) {
        SCOPED_TRACE(absl::StrCat(WeightFormatName(first), " to ",
                                  WeightFormatName(second)));
        const std::string to = NewPath("to");
        ASSERT_OK(CopyWeights(*opened->source, second, to, {.num_heads = 2}));
        const auto again = OpenWeights(to);
        ASSERT_OK(again);
        EXPECT_EQ(again->format, second);
        EXPECT_OK(CompareWeights(weights, *again->source));
      }
    }
  }
}

// One tensor of each type that tessera does not compute with.
class OpaqueWeights final : public WeightSource {
 public:
  OpaqueWeights() {
    for (const char* name :
         {"I8", "I16", "U16", "U32", "U64", "C64", "F8_E4M3", "F8_E5M2",
          "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"}) {
      weights_[name] = {name,        name,     {},
                        Shape{3, 5}, "memory", FindOpaqueSafetensorsType(name)};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device /*device*/) const override {
    const DType dtype = weight.opaque->carrier;
    std::string bytes;
    for (int64_t i = 0; i < 15 * ElementBytes(dtype); ++i) {
      bytes += static_cast<char>(i * 37 + weight.name[0] + 0x7d);
    }
    return Tensor::FromBytes(bytes.data() + begin * ElementBytes(dtype),
                             Shape{length}, {dtype});
  }
};

TEST(ConvertTest, TypesThatNobodyComputesWithAreCopied) {
  const OpaqueWeights weights;
  const std::string first = NewPath("opaque");
  ASSERT_OK(CopyWeights(weights, WeightFormat::kSafetensors, first,
                        {.dtype = DType::kBFloat16, .max_shard_bytes = 60}));
  EXPECT_TRUE(fs::exists(first + "/model.safetensors.index.json"));
  const auto opened = OpenWeights(first);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->warnings.empty()) << opened->warnings[0];
  EXPECT_OK(CompareWeights(weights, *opened->source));
  EXPECT_EQ(opened->source->weights().at("F8_E4M3").type_name, "F8_E4M3");
  EXPECT_THAT(opened->source->ReadElements("I16", 0, 1, CpuDevice()),
              StatusIs(absl::StatusCode::kUnimplemented, "no tensors of I16"));
  for (const WeightFormat format :
       {WeightFormat::kSafetensors, WeightFormat::kTorch,
        WeightFormat::kDistributed}) {
    SCOPED_TRACE(WeightFormatName(format));
    const std::string to = NewPath("opaque_to");
    ASSERT_OK(CopyWeights(*opened->source, format, to, {}));
    const auto again = OpenWeights(to);
    ASSERT_OK(again);
    EXPECT_OK(CompareWeights(weights, *again->source));
    if (format != WeightFormat::kDistributed) continue;
    for (const bool safe : {true, false}) {
      const std::string merged = NewPath("opaque_merged");
      ASSERT_OK(MergeFsdpWeights(to, merged, safe));
      EXPECT_OK(CompareWeights(weights, *OpenWeights(merged)->source));
    }
  }
  EXPECT_THAT(
      CopyWeights(weights, WeightFormat::kNative, NewPath("opaque_no"), {}),
      StatusIs(absl::StatusCode::kUnimplemented, "no tensors of C64"));
}

TEST(ConvertTest, CastsAndTellsHowFarItIs) {
  const SmallWeights weights(DType::kBFloat16);
  const std::string to = NewPath("cast");
  int64_t last = 0;
  int64_t in_all = 0;
  ASSERT_OK(CopyWeights(weights, WeightFormat::kSafetensors, to,
                        {.dtype = DType::kFloat32,
                         .max_shard_bytes = 1000,
                         .progress = [&](int64_t done, int64_t total) {
                           EXPECT_GT(done, last);
                           last = done;
                           in_all = total;
                         }}));
  EXPECT_EQ(last, in_all);
  EXPECT_TRUE(fs::exists(to + "/model.safetensors.index.json"));
  const auto opened = OpenWeights(to);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->source->weights().at("transformer.ln_f.bias").dtype,
            DType::kFloat32);
  const auto status = CompareWeights(weights, *opened->source);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not there"));
}

TEST(ConvertTest, SavingACheckpointRemovesNothingElse) {
  const SmallWeights weights(DType::kFloat32);
  const std::string to = NewPath("occupied");
  ASSERT_OK(MakeFolders(to));
  ASSERT_OK(WriteFile(to + "/letter.txt", "dear"));
  EXPECT_EQ(CopyWeights(weights, WeightFormat::kNative, to, {}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs::exists(to + "/letter.txt"));
  EXPECT_FALSE(fs::exists(to + ".tmp"));
}

// What llm.c would compute differently is refused, by the name of the option.
TEST(ConvertTest, ConfigsThatLlmcCannotHonour) {
  const SmallWeights weights(DType::kFloat32);
  const std::string to = NewPath("refused");
  const auto write = [&](const std::string& more, int num_heads) {
    CopyOptions options;
    options.num_heads = num_heads;
    options.texts["config.json"] = absl::StrCat(
        R"({"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 2)",
        more, "}");
    return CopyWeights(weights, WeightFormat::kLlmc, to, options);
  };
  for (const char* option :
       {R"("activation_function": "relu")", R"("activation_function": "gelu")",
        R"("scale_attn_by_inverse_layer_idx": true)",
        R"("scale_attn_weights": false)", R"("layer_norm_epsilon": 1e-6)",
        R"("n_inner": 8)"}) {
    const std::string name = std::string(option).substr(1);
    EXPECT_THAT(write(absl::StrCat(", ", option), 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         name.substr(0, name.find('"'))));
  }
  EXPECT_THAT(write("", 1), StatusIs(absl::StatusCode::kInvalidArgument,
                                     "config.json says 2, wanted were 1"));
  EXPECT_THAT(CopyWeights(weights, WeightFormat::kLlmc, to, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--heads"));
  EXPECT_FALSE(fs::exists(to));
  EXPECT_OK(write("", 0));
  const auto opened = OpenWeights(to);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->config.has_value());
}

// The model goes through a checkpoint of ours and back.
TEST(ConvertTest, ACheckpointOfOursKeepsTheConfig) {
  const SmallWeights weights(DType::kFloat32);
  const std::string to = NewPath("config");
  ASSERT_OK(CopyWeights(
      weights, WeightFormat::kNative, to,
      {.texts = {{"config.json", R"({"model_type": "gpt2", "n_head": 2,
                                     "n_embd": 4, "n_layer": 2})"}}}));
  EXPECT_TRUE(fs::exists(to + "/rank-00000-of-00001.safetensors"));
  const auto opened = OpenWeights(to);
  ASSERT_OK(opened);
  ASSERT_TRUE(opened->config.has_value());
  EXPECT_EQ(std::get<GPT2Config>(*opened->config).n_head, 2);
}

TEST(ConvertTest, UnknownFormatsAndPathsAreNamed) {
  EXPECT_THAT(std::string(ParseWeightFormat("gguf").status().message()),
              HasSubstr("safetensors, bin, torch, native, llmc"));
  EXPECT_EQ(OpenWeights(NewPath("nothing")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
