#include "runtime/data/tokenizer/bpe_trainer.h"

#include <nlohmann/json.hpp>

#include "runtime/data/tokenizer/tokenizer_json.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;

std::vector<std::string> MergesOf(const std::string& json_text) {
  std::vector<std::string> merges;
  const Json json = Json::parse(json_text);
  for (const Json& pair : json["model"]["merges"]) {
    merges.push_back(pair[0].get<std::string>() + " " +
                     pair[1].get<std::string>());
  }
  return merges;
}

std::vector<std::string> Train(const std::string& text,
                               const BpeTrainerOptions& options) {
  BpeTrainer trainer;
  trainer.Add(text);
  const absl::StatusOr<std::string> json = trainer.Train(options);
  EXPECT_OK(json);
  return json.ok() ? MergesOf(*json) : std::vector<std::string>();
}

TEST(BpeTrainerTest, TheMostFrequentPairFirst) {
  // aaab: aa twice (also overlapping), ab once, each word twice.
  EXPECT_THAT(Train("xy\nxy\nxy\nxyz\nxyz", {.vocab_size = 1000}),
              ElementsAre("x y", "xy z"));
  EXPECT_THAT(Train("aaab\naaab", {.vocab_size = 1000}),
              ElementsAre("a a", "a b", "aa ab"));
}

TEST(BpeTrainerTest, StopsAtTheSizeOrTheFrequency) {
  const std::string text = "abcd\nabcd\nabcd\nef\nef";
  EXPECT_THAT(Train(text, {.vocab_size = 259}), ElementsAre("a b", "c d"));
  EXPECT_THAT(Train(text, {.vocab_size = 1000, .min_frequency = 3}),
              ElementsAre("a b", "c d", "ab cd"));
  EXPECT_THAT(Train(text, {.vocab_size = 1000}),
              ElementsAre("a b", "c d", "ab cd", "e f"));
  EXPECT_THAT(Train("", {}), ElementsAre());
}

TEST(BpeTrainerTest, TheOrderOfTheTextDoesNotMatter) {
  BpeTrainer one;
  one.Add("the cat\nthe hat\n");
  one.Add("that\n");
  BpeTrainer other;
  other.Add("that\n");
  other.Add("the hat\nthe cat\n");
  EXPECT_EQ(*one.Train({}), *other.Train({}));
}

TEST(BpeTrainerTest, WhatItLearnsIsATokenizer) {
  const std::string text =
      "the quick \u6771\u4EAC fox\nthe quick fox\nthe fox 123\n\xFF";
  BpeTrainer trainer;
  trainer.Add(text);
  const auto json = trainer.Train(
      {.vocab_size = 300, .special_tokens = {"<|endoftext|>", "<|\"pad\"|>"}});
  ASSERT_OK(json);
  const auto parsed = ParseTokenizerJson(*json);
  ASSERT_OK(parsed);
  EXPECT_TRUE(parsed->warnings.empty());
  const BpeTokenizer& tokenizer = *parsed->tokenizer;
  EXPECT_EQ(tokenizer.IdOf("<|\"pad\"|>"), 1);
  EXPECT_TRUE(tokenizer.IsSpecial(0));
  const std::string other = "a quick \u6771 is the\t fox?";
  const std::vector<int32_t> ids = tokenizer.Encode(other);
  EXPECT_EQ(tokenizer.Decode(ids), other);
  EXPECT_LT(ids.size(), other.size());
  EXPECT_EQ(tokenizer.Encode(" quick").size(), 1u);
}

TEST(BpeTrainerTest, RefusesWhatDoesNotFit) {
  const BpeTrainer trainer;
  EXPECT_THAT(trainer.Train({.vocab_size = 256}),
              StatusIs(absl::StatusCode::kInvalidArgument, "at least 257"));
  for (const std::vector<std::string>& tokens :
       std::vector<std::vector<std::string>>{
           {""}, {"<a>", "<a>"}, {"a"}, {"\xFF\xFE"}}) {
    EXPECT_THAT(trainer.Train({.special_tokens = tokens}),
                StatusIs(absl::StatusCode::kInvalidArgument, "special"));
  }
}

}  // namespace
}  // namespace tessera
