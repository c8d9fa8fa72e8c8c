// generation_config.json: one id or several, nulls, and refusals.
#include "checkpoint/huggingface/generation_config.h"

#include <filesystem>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(GenerationConfigTest, ReadsWhatIsThere) {
  const auto config = ParseGenerationConfig(
      R"({"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": null,
          "do_sample": true, "temperature": 0.6, "top_k": 40, "top_p": 0.9,
          "min_p": 0.05, "max_new_tokens": 20, "transformers_version": "5.0"})");
  ASSERT_OK(config);
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int64_t>{2, 7}));
  EXPECT_FALSE(config->pad_token_id.has_value());
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 40);
  EXPECT_EQ(config->top_p, 0.9);
  EXPECT_EQ(config->min_p, 0.05);
  EXPECT_EQ(config->max_new_tokens, 20);
  const auto one = ParseGenerationConfig(R"({"eos_token_id": 3})");
  ASSERT_OK(one);
  EXPECT_EQ(one->eos_token_ids, std::vector<int64_t>{3});
  const auto none = ParseGenerationConfig("{}");
  ASSERT_OK(none);
  EXPECT_TRUE(none->eos_token_ids.empty());
  EXPECT_FALSE(none->do_sample.has_value());
}

TEST(GenerationConfigTest, WhatHasNoEffectIsAWarning) {
  const auto config = ParseGenerationConfig(
      R"({"repetition_penalty": 1.1, "num_beams": 4, "top_h": 0.1,
          "typical_p": 1.0, "no_repeat_ngram_size": 0, "min_length": null})");
  ASSERT_OK(config);
  EXPECT_EQ(config->repetition_penalty, 1.1);
  ASSERT_EQ(config->warnings.size(), 2u);
  EXPECT_EQ(config->warnings[0],
            "generation_config.json: \"num_beams\" (4) has no effect here");
  EXPECT_EQ(config->warnings[1],
            "generation_config.json: \"top_h\" (0.1) has no effect here");
}

TEST(GenerationConfigTest, Refusals) {
  const auto refuse = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(ParseGenerationConfig(text),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  refuse("3", "is not a JSON object");
  refuse("{", "is not a JSON object");
  refuse(R"({"eos_token_id": "x"})", "\"eos_token_id\" is \"x\"");
  refuse(R"({"eos_token_id": [1, 2.5]})", "an integer or a list of them");
  refuse(R"({"bos_token_id": 1.5})", "\"bos_token_id\" is 1.5");
  refuse(R"({"do_sample": 1})", "must be true or false");
  refuse(R"({"top_p": "all"})", "must be a number");
}

TEST(GenerationConfigTest, OlderFoldersHaveItInConfigJson) {
  const std::string folder = ::testing::TempDir() + "/generation";
  std::filesystem::remove_all(folder);
  ASSERT_OK(MakeFolders(folder));
  EXPECT_THAT(ReadGenerationConfig(folder),
              StatusIs(absl::StatusCode::kNotFound, "config.json"));
  ASSERT_OK(WriteFile(folder + "/config.json", R"({"eos_token_id": 5})"));
  auto config = ReadGenerationConfig(folder);
  ASSERT_OK(config);
  EXPECT_EQ(config->eos_token_ids, std::vector<int64_t>{5});
  const std::string path = folder + "/generation_config.json";
  ASSERT_OK(WriteFile(path, R"({"eos_token_id": 6})"));
  config = ReadGenerationConfig(folder);
  ASSERT_OK(config);
  EXPECT_EQ(config->eos_token_ids, std::vector<int64_t>{6});
  ASSERT_OK(WriteFile(path, "{"));
  EXPECT_THAT(ReadGenerationConfig(folder),
              StatusIs(absl::StatusCode::kInvalidArgument, path));
}

}  // namespace
}  // namespace tessera
