#include "runtime/data/tokenizer/tokenizer_json.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/stream_decoder.h"
#include "runtime/data/utf8.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;

// Letters, bytes for the fall-back, one merge, two added tokens.
Json Small() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
       "rstrip": false, "normalized": false, "special": true},
      {"id": 9, "content": "[x]", "single_word": false, "lstrip": false,
       "rstrip": false, "normalized": false, "special": false}],
    "normalizer": null, "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence",
                "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "unk_token": "<s>", "byte_fallback": true,
      "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "<0xE6>": 4, "<0x9D>": 5,
                "<0xB1>": 6, " ": 7},
      "merges": [["a", "b"]]}})");
}

std::unique_ptr<BpeTokenizer> Parse(const Json& json) {
  absl::StatusOr<ParsedTokenizer> parsed = ParseTokenizerJson(json.dump());
  EXPECT_OK(parsed);
  return parsed.ok() ? std::move(parsed->tokenizer) : nullptr;
}

TEST(TokenizerJsonTest, Encodes) {
  const auto tokenizer = Parse(Small());
  EXPECT_THAT(tokenizer->Encode("ab[x]b\u6771", {}),
              ElementsAre(0, 3, 9, 2, 4, 5, 6));
  EXPECT_THAT(tokenizer->Encode("ba"), ElementsAre(2, 1));
  EXPECT_THAT(tokenizer->Encode("", {}), ElementsAre(0));
  EXPECT_THAT(tokenizer->Encode("\xE6\x9D"), ElementsAre(0));  // U+FFFD.
  EXPECT_THAT(tokenizer->Encode("a<s>"), ElementsAre(1, 0));
  EXPECT_THAT(tokenizer->Encode("ab<s>", {.add_special_tokens = false,
                                          .special_tokens_as_text = true}),
              ElementsAre(3, 0, 0, 0));
  EXPECT_EQ(tokenizer->vocab_size(), 10);
}

TEST(TokenizerJsonTest, Decodes) {
  const auto tokenizer = Parse(Small());
  const std::vector<int32_t> ids = {0, 3, 9, 4, 5, 6, 55, -1};
  EXPECT_EQ(tokenizer->Decode(ids), "<s>ab[x]\u6771");
  EXPECT_EQ(tokenizer->Decode(ids, {.skip_special_tokens = true}),
            "ab[x]\u6771");
  EXPECT_EQ(tokenizer->IdOf("[x]"), 9);
  EXPECT_EQ(tokenizer->IdOf("ab"), 3);
  EXPECT_EQ(tokenizer->IdOf("abc"), kNoToken);
  EXPECT_EQ(tokenizer->TokenOf(4), "<0xE6>");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(9));
  Json json = Small();
  json.erase("decoder");
  EXPECT_EQ(Parse(json)->Decode(ids), "<s> ab [x] <0xE6> <0x9D> <0xB1>");
}

TEST(TokenizerJsonTest, BothSpellingsOfMerges) {
  Json json = Small();
  json["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_THAT(Parse(json)->Encode("ab"), ElementsAre(3));
}

TEST(TokenizerJsonTest, NamesDifferWithTheFile) {
  Json json = Small();
  const std::string name = Parse(json)->name();
  EXPECT_EQ(Parse(json)->name(), name);
  json["model"]["fuse_unk"] = true;
  EXPECT_NE(Parse(json)->name(), name);
}

TEST(TokenizerJsonTest, WarnsOfWhatHasNoEffect) {
  Json json = Small();
  json["truncation"] = {{"max_length", 5}};
  json["model"]["merges"] = {"a b", "a b"};
  const auto parsed = ParseTokenizerJson(json.dump());
  ASSERT_OK(parsed);
  ASSERT_EQ(parsed->warnings.size(), 2u);
  EXPECT_EQ(parsed->warnings[0].find("truncation"), 0u);
  EXPECT_NE(parsed->warnings[1].find("stand twice"), std::string::npos);
}

struct Change {
  std::string pointer;  // Where in the file.
  std::string json;     // What to put there.
  std::string error;    // A part of the message.
};

TEST(TokenizerJsonTest, ErrorsNameThePlace) {
  const std::vector<Change> changes = {
      {"/version", "\"2.0\"", "version: \"2.0\" is not supported"},
      {"/model", "5", "model: wanted an object"},
      {"/model", "null", "model: wanted an object"},
      {"/model/type", "\"WordPiece\"", "model.type: \"WordPiece\""},
      {"/model/vocab", "[]", "model.vocab: wanted an object"},
      {"/model/vocab/a", "-1", "model.vocab[\"a\"]: wanted an integer"},
      {"/model/vocab/a", "1.0", "model.vocab[\"a\"]: wanted an integer"},
      {"/model/vocab/a", "2147483648", "model.vocab[\"a\"]: wanted an int"},
      {"/model/vocab/a", "2", "the id 2 is both"},
      {"/model/vocab/a", "{}", "model.vocab[\"a\"]"},
      {"/model/merges", "{}", "model.merges: wanted an array"},
      {"/model/merges", "[\"a  b\"]", "model.merges[0]: wanted two tokens"},
      {"/model/merges", "[\"ab\"]", "model.merges[0]: wanted two tokens"},
      {"/model/merges", "[[\"a\"]]", "model.merges[0]: wanted two tokens"},
      {"/model/merges", "[[\"a\",\"b\",\"a\"]]", "got more"},
      {"/model/merges", "[[\"a\",\"b\"],\"a b\"]", "a string among pairs"},
      {"/model/merges", "[\"a b\",[\"a\",\"b\"]]", "a pair among strings"},
      {"/model/merges", "[\"a c\"]", "model.merges[0]: \"c\" is not in"},
      {"/model/merges", "[\"b a\"]", "model.merges[0]: \"ba\" is not in"},
      {"/model/merges", "[7]", "model.merges[0]: wanted two tokens, got 7"},
      {"/model/unk_token", "\"?\"", "model.unk_token \"?\""},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
      {"/model/fuse_unk", "1", "model.fuse_unk: wanted true or false, got 1"},
      {"/added_tokens/0/id", "3", "added_tokens[0]: \"<s>\" has the id 3"},
      {"/added_tokens/1/id", "1", "added_tokens[1]: the id 1 is also \"a\""},
      {"/added_tokens/1/id", "0", "added_tokens[1]: the id 0 is both"},
      {"/added_tokens/1/content", "\"\"", "added_tokens[1]: \"content\" is em"},
      {"/added_tokens/1", "7", "added_tokens[1]"},
      {"/added_tokens", "{}", "added_tokens: wanted an array"},
      {"/normalizer", R"({"type": "Nmt"})", "normalizer.type: \"Nmt\""},
      {"/normalizer", R"({})", "normalizer: \"type\" is missing"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"},
        {"type": "BertNormalizer"}]})",
       "normalizer.normalizers[1].type: \"BertNormalizer\""},
      {"/normalizer", R"({"type": "Replace", "content": "",
        "pattern": {"Regex": "("}})",
       "normalizer.pattern.Regex: the pattern ( does not compile"},
      {"/pre_tokenizer", R"({"type": "UnicodeScripts"})",
       "pre_tokenizer.type: \"UnicodeScripts\""},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"},
        "behavior": "Cut"})",
       "pre_tokenizer.behavior: \"Cut\""},
      {"/pre_tokenizer", R"({"type": "ByteLevel"})", "byte 0x00 is missing"},
      {"/decoder", R"({"type": "CTC"})", "decoder.type: \"CTC\""},
      {"/post_processor/single/0/SpecialToken/id", "\"<t>\"",
       "post_processor.single[0].SpecialToken.id: \"<t>\""},
      {"/post_processor/type", "\"BertProcessing\"", "\"cls\" is missing"},
      {"/post_processor/type", "\"Other\"", "\"Other\" is not supported"},
  };
  for (const Change& change : changes) {
    Json json = Small();
    json[Json::json_pointer(change.pointer)] = Json::parse(change.json);
    EXPECT_THAT(ParseTokenizerJson(json.dump()),
                StatusIs(absl::StatusCode::kInvalidArgument, change.error))
        << change.pointer << " " << change.json;
  }
}

TEST(TokenizerJsonTest, ErrorsOfText) {
  for (const char* text :
       {"", "{", "[]", "7", "{}", "{\"model\": {}}", "{\"model\": {}} x",
        "{\"version\": \"\\ud800\"}", "{\"version\": \"\xFF\"}",
        "{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}}}",
        "{\"model\": {}, \"model\": {}}",
        "{\"decoder\": {\"type\": \"Fuse\", \"type\": \"Fuse\"}}"}) {
    EXPECT_THAT(ParseTokenizerJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, "tokenizer.json"))
        << text;
  }
}

TEST(TokenizerJsonTest, OtherKeysArePassedOver) {
  std::string deep(100000, '[');
  deep += std::string(100000, ']');
  std::string text = Small().dump();
  text.insert(1, "\"other\": " + deep + ",\"more\":{\"model\":[{}]},");
  EXPECT_OK(ParseTokenizerJson(text));
  std::string inside = Small().dump();
  inside.insert(1, "\"padding\": " + deep + ",");
  EXPECT_THAT(ParseTokenizerJson(inside),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "padding: nested more than 64 deep"));
}

TEST(TokenizerJsonTest, LoadsFoldersAndFiles) {
  const std::string folder = ::testing::TempDir() + "/tokenizer";
  ASSERT_OK(MakeFolders(folder));
  ASSERT_OK(WriteFile(folder + "/tokenizer.json", Small().dump()));
  EXPECT_OK(LoadTokenizer(folder));
  EXPECT_OK(LoadTokenizer(folder + "/tokenizer.json"));
  EXPECT_THAT(LoadTokenizer(folder + "/none"),
              StatusIs(absl::StatusCode::kNotFound, "none"));
  ASSERT_OK(WriteFile(folder + "/tokenizer.json", "{}"));
  EXPECT_THAT(LoadTokenizer(folder),
              StatusIs(absl::StatusCode::kInvalidArgument, folder));
}

TEST(TokenizerJsonTest, ThreadsShareATokenizer) {
  const auto tokenizer = Parse(Small());
  const std::string text = "abba[x]\u6771ab";
  const std::vector<int32_t> wanted = tokenizer->Encode(text, {});
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4);
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        if (tokenizer->Encode(text, {}) != wanted) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, ElementsAre(0, 0, 0, 0));
}

TEST(StreamDecoderTest, NeverHalfACharacter) {
  const auto tokenizer = Parse(Small());
  StreamDecoder stream(*tokenizer, {});
  EXPECT_EQ(stream.Push(3), "ab");
  EXPECT_EQ(stream.Push(4), "");
  EXPECT_EQ(stream.Push(5), "");
  EXPECT_EQ(stream.Push(6), "\u6771");
  EXPECT_EQ(stream.Push(1), "a");
  EXPECT_EQ(stream.Push(4), "");
  EXPECT_EQ(stream.Push(1), "\uFFFDa");
  EXPECT_EQ(stream.Push(5), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Push(2), "b");
}

TEST(StreamDecoderTest, SkipsSpecialTokens) {
  const auto tokenizer = Parse(Small());
  StreamDecoder stream(*tokenizer, {.skip_special_tokens = true});
  EXPECT_EQ(stream.Push(0), "");
  EXPECT_EQ(stream.Push(1), "a");
  EXPECT_EQ(stream.Push(0), "");
  EXPECT_EQ(stream.Push(2), "b");
  EXPECT_EQ(stream.Finish(), "");
}

// The space that begins a text is left out, one inside is not.
TEST(StreamDecoderTest, SpacesAtTheBeginning) {
  Json json = Small();
  json["decoder"]["decoders"].push_back(
      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const auto tokenizer = Parse(json);
  StreamDecoder stream(*tokenizer, {});
  std::string text;
  for (const int32_t id : {7, 1, 7, 7, 2, 7}) text += stream.Push(id);
  EXPECT_EQ(text + stream.Finish(), "a  b ");
}

}  // namespace
}  // namespace tessera
