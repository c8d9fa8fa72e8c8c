// A folder of vocab.json and merges.txt is the tokenizer that its
// tokenizer.json would be.
#include "runtime/data/tokenizer/vocab_merges.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/tokenizer_json.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string GoldenPath(const std::string& name) {
  return "tests/golden/tokenizers/" + name + "/tokenizer.json";
}

// The golden tokenizer `name` as an older folder, with `config` as its
// tokenizer_config.json.
std::string OldFolder(const std::string& name, const Json& config) {
  const Json json = Json::parse(OrThrow(ReadFile(GoldenPath(name))));
  const std::string folder = ::testing::TempDir() + "/old_" + name;
  fs::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  EXPECT_OK(WriteFile(folder + "/vocab.json", json["model"]["vocab"].dump()));
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    absl::StrAppend(&merges, merge[0].get<std::string>(), " ",
                    merge[1].get<std::string>(), "\n");
  }
  EXPECT_OK(WriteFile(folder + "/merges.txt", merges));
  Json described = config;
  for (const Json& token : json["added_tokens"]) {
    Json& entry = described["added_tokens_decoder"]
                           [std::to_string(token["id"].get<int>())];
    entry = token;
    entry.erase("id");
  }
  EXPECT_OK(WriteFile(folder + "/tokenizer_config.json", described.dump()));
  return folder;
}

TEST(VocabMergesTest, IsTheTokenizerOfItsFile) {
  for (const auto& [name, class_name] :
       std::vector<std::pair<std::string, std::string>>{
           {"gpt2", "GPT2Tokenizer"}, {"qwen2", "Qwen2TokenizerFast"}}) {
    const auto wanted = LoadTokenizer(GoldenPath(name));
    ASSERT_OK(wanted);
    const auto got =
        LoadTokenizer(OldFolder(name, {{"tokenizer_class", class_name}}));
    ASSERT_OK(got);
    EXPECT_EQ((*got)->vocab_size(), (*wanted)->vocab_size());
    const Json rows = Json::parse(OrThrow(
        ReadFile("tests/golden/tokenizers/" + name + "/encodings.json")));
    ASSERT_GT(rows.size(), 10u);
    for (const Json& row : rows) {
      const std::string text = row["text"];
      const auto ids = (*got)->Encode(text, {});
      EXPECT_EQ(ids, (*wanted)->Encode(text, {})) << text;
      EXPECT_EQ((*got)->Decode(ids), (*wanted)->Decode(ids));
    }
  }
}

// 256 bytes and a merge, as older folders describe them.
VocabMergesFiles Small() {
  const auto json = Json::parse(OrThrow(ReadFile(GoldenPath("gpt2"))))["model"];
  VocabMergesFiles files;
  files.vocab_json = json["vocab"].dump();
  files.merges_txt = "#version: 0.2\no r\r\n\ne r";
  return files;
}

ParsedTokenizer Parse(const VocabMergesFiles& files) {
  return OrThrow(ParseTokenizerJson(OrThrow(TokenizerJsonOf(files))));
}

TEST(VocabMergesTest, WithoutOtherFilesItIsGpt2) {
  const auto parsed = Parse(Small());
  EXPECT_EQ(parsed.tokenizer->Encode("<|endoftext|>"),
            (std::vector<int32_t>{0}));
  EXPECT_EQ(parsed.tokenizer->Encode("or").size(), 1u);
}

TEST(VocabMergesTest, SpecialTokensAreAddedOnce) {
  VocabMergesFiles files = Small();
  files.special_tokens_map_json =
      R"({"bos_token": {"content": "<s>"}, "eos_token": "<|endoftext|>",
          "unk_token": null, "additional_special_tokens": ["<x>", "<s>"]})";
  files.added_tokens_json = R"({"<y>": 900})";
  files.tokenizer_config_json = R"({"add_bos_token": true})";
  const auto parsed = Parse(files);
  EXPECT_EQ(parsed.tokenizer->Encode("<x><y>", {}),
            (std::vector<int32_t>{901, 902, 900}));
  EXPECT_EQ(parsed.tokenizer->Decode(std::vector<int32_t>{901, 900, 0},
                                     {.skip_special_tokens = true}),
            "<y>");
}

TEST(VocabMergesTest, WhatIsWrongIsNamed) {
  const auto expect_refused = [](const VocabMergesFiles& files,
                                 absl::StatusCode code,
                                 const std::string& part) {
    EXPECT_THAT(TokenizerJsonOf(files), StatusIs(code, part));
  };
  VocabMergesFiles files = Small();
  files.tokenizer_config_json = R"({"tokenizer_class": "RobertaTokenizer"})";
  expect_refused(files, absl::StatusCode::kUnimplemented,
                 "\"RobertaTokenizer\"");
  files = Small();
  files.vocab_json = "[]";
  expect_refused(files, absl::StatusCode::kInvalidArgument, "vocab.json");
  files.vocab_json = R"({"a": -1})";
  expect_refused(files, absl::StatusCode::kInvalidArgument, "a");
  files = Small();
  files.tokenizer_config_json = R"({"added_tokens_decoder": {"x": {}}})";
  expect_refused(files, absl::StatusCode::kInvalidArgument,
                 "added_tokens_decoder");
  files = Small();
  files.merges_txt = "o nowhere";
  EXPECT_THAT(ParseTokenizerJson(OrThrow(TokenizerJsonOf(files))),
              StatusIs(absl::StatusCode::kInvalidArgument, "nowhere"));
  EXPECT_THAT(ReadVocabMerges(::testing::TempDir() + "/none"),
              StatusIs(absl::StatusCode::kNotFound, "vocab.json"));
}

}  // namespace
}  // namespace tessera
