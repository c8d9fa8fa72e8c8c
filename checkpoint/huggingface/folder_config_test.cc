// config.json beside the model's shape: architecture, element type, what is
// not used, and what is kept when it is written again.
#include "checkpoint/huggingface/folder_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

const char* const kSmall =
    R"({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,)";

FolderConfig Parse(const std::string& rest) {
  const auto config = ParseFolderConfig(kSmall + rest);
  EXPECT_OK(config);
  return config.ok() ? *config : FolderConfig();
}

TEST(FolderConfigTest, BothSpellingsOfTheElementType) {
  EXPECT_EQ(Parse(R"("torch_dtype": "bfloat16"})").dtype, DType::kBFloat16);
  EXPECT_EQ(Parse(R"("dtype": "float16"})").dtype, DType::kFloat16);
  EXPECT_EQ(Parse(R"("dtype": "float32"})").dtype, DType::kFloat32);
  EXPECT_EQ(Parse(R"("torch_dtype": null})").dtype, std::nullopt);
  EXPECT_EQ(Parse(R"("torch_dtype": "auto"})").dtype, std::nullopt);
  EXPECT_EQ(Parse(R"("use_cache": true})").dtype, std::nullopt);
  EXPECT_THAT(
      ParseFolderConfig(std::string(kSmall) + R"("dtype": "float8_e4m3fn"})"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "\"dtype\" is \"float8_e4m3fn\"; float32, bfloat16"));
}

TEST(FolderConfigTest, Architectures) {
  Parse(R"("architectures": ["LlamaForCausalLM"]})");
  Parse(R"("architectures": ["LlamaModel"]})");
  Parse(R"("architectures": null})");
  EXPECT_THAT(ParseFolderConfig(
                  std::string(kSmall) +
                  R"("architectures": ["LlamaForSequenceClassification"]})"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "LlamaForSequenceClassification"));
  EXPECT_OK(ParseFolderConfig(
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})"));
  EXPECT_THAT(
      ParseFolderConfig(
          R"({"model_type": "gpt2", "architectures": ["LlamaForCausalLM"]})"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "GPT2LMHeadModel and GPT2Model are supported"));
}

TEST(FolderConfigTest, WhatHasNoEffectIsSaid) {
  EXPECT_TRUE(Parse(R"("use_cache": true, "bos_token_id": 1,
                       "rope_theta": 1e4, "transformers_version": "5",
                       "vision": null})")
                  .warnings.empty());
  const auto warnings =
      Parse(R"("attention_sinks": 4, "rms_norm_eps": 1e-5})").warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              HasSubstr("\"attention_sinks\" (4) has no effect here"));
}

TEST(FolderConfigTest, ErrorsNameTheFolder) {
  const std::string folder = ::testing::TempDir() + "/folder_config";
  std::filesystem::remove_all(folder);
  ASSERT_OK(MakeFolders(folder));
  EXPECT_THAT(ReadFolderConfig(folder),
              StatusIs(absl::StatusCode::kNotFound, folder + "/config.json"));
  ASSERT_OK(WriteFile(folder + "/config.json", R"({"model_type": "bert"})"));
  EXPECT_THAT(ReadFolderConfig(folder),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       folder + ": config.json: \"model_type\" is \"bert\""));
}

TEST(FolderConfigTest, UnknownKeysAreKept) {
  FolderConfig config =
      Parse(R"("mystery": {"a": [1]}, "dtype": "float32", "vocab_size": 99,
               "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                   "rope_theta": 5e5}})");
  std::get<LlamaConfig>(config.model).vocab_size = 100;
  const std::string text =
      FolderConfigText(config.model, DType::kBFloat16, config.text);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["mystery"]["a"][0], 1);
  EXPECT_EQ(json["vocab_size"], 100);
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_FALSE(json.contains("dtype"));
  // Both generations of readers find the frequencies.
  EXPECT_EQ(json["rope_theta"], 5e5);
  EXPECT_EQ(json["rope_scaling"]["factor"], 2.0);
  const auto again = ParseFolderConfig(text);
  ASSERT_OK(again);
  EXPECT_EQ(again->dtype, DType::kBFloat16);
  const auto& rope = std::get<LlamaConfig>(again->model).rope;
  EXPECT_EQ(rope.rope_type, "linear");
  EXPECT_EQ(rope.rope_theta, 5e5);
}

TEST(FolderConfigTest, ANewModelHasATextToo) {
  const auto config =
      ParseFolderConfig(FolderConfigText(GPT2Config(), DType::kFloat32));
  ASSERT_OK(config);
  EXPECT_EQ(config->dtype, DType::kFloat32);
  EXPECT_TRUE(config->warnings.empty());
  EXPECT_EQ(std::get<GPT2Config>(config->model).n_embd, 768);
}

}  // namespace
}  // namespace tessera
