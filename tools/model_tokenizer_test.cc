// The tokenizer of a folder: its own, or bytes.
#include "tools/model_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tokenizer_" + name;
  std::filesystem::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

// What Stream makes of all ids, piece by piece.
std::string Streamed(const ModelTokenizer& tokenizer,
                     const std::vector<int32_t>& ids) {
  ModelTokenizer::Stream stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

TEST(ModelTokenizerTest, BytesWhereThereIsNoFile) {
  const std::string folder = FreshFolder("bytes");
  const auto tokenizer = ModelTokenizer::Open(folder, 256);
  ASSERT_OK(tokenizer);
  EXPECT_EQ(tokenizer->tokenizer().name(), "bytes");
  const std::vector<int32_t> ids = tokenizer->EncodePrompt("ab\xff");
  EXPECT_EQ(ids, (std::vector<int32_t>{97, 98, 255}));
  EXPECT_EQ(Streamed(*tokenizer, ids), "ab\xff");
  EXPECT_EQ(ModelTokenizer().tokenizer().vocab_size(), 256);
}

TEST(ModelTokenizerTest, IdsThatAreNotBytes) {
  const std::string folder = FreshFolder("none");
  EXPECT_THAT(ModelTokenizer::Open(folder, 160),
              StatusIs(absl::StatusCode::kNotFound, "160 ids are not bytes"));
}

TEST(ModelTokenizerTest, TheFoldersOwn) {
  const std::string golden = "tests/golden/tokenizers/";
  for (const char* name : {"gpt2", "llama2", "smollm"}) {
    const auto tokenizer = ModelTokenizer::Open(golden + name, 1000);
    ASSERT_OK(tokenizer) << name;
    const std::string text = "The quick brown fox, twice: \u00e9\U0001f600.";
    const std::vector<int32_t> plain = tokenizer->tokenizer().Encode(text);
    const std::vector<int32_t> prompt = tokenizer->EncodePrompt(text);
    EXPECT_LT(plain.size(), text.size());
    EXPECT_EQ(Streamed(*tokenizer, plain), text);
    EXPECT_EQ(Streamed(*tokenizer, prompt), text);  // Special tokens are mute.
    // Llama 2 begins every text with a token of its own.
    EXPECT_EQ(prompt.size(),
              plain.size() + (std::string(name) == "llama2" ? 1 : 0));
  }
}

TEST(ModelTokenizerTest, ATokenizerOfAnotherModel) {
  EXPECT_THAT(ModelTokenizer::Open("tests/golden/tokenizers/gpt2", 600),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "has 702 ids, the model has 600"));
  const std::string folder = FreshFolder("broken");
  ASSERT_OK(WriteFile(folder + "/tokenizer.json", "{"));
  EXPECT_FALSE(ModelTokenizer::Open(folder, 256).ok());
}

// As Llama 2 with a padding token that its weights have no row for.
TEST(ModelTokenizerTest, AnAddedTokenThatTheModelLacks) {
  const std::string golden = "tests/golden/tokenizers/llama2";
  const auto whole = ModelTokenizer::Open(golden, 1000);
  ASSERT_OK(whole);
  const int64_t num_ids = whole->tokenizer().vocab_size();
  EXPECT_TRUE(whole->warnings().empty());
  const std::string folder = FreshFolder("added");
  auto json = nlohmann::json::parse(*ReadFile(golden + "/tokenizer.json"));
  json["added_tokens"].push_back({{"id", num_ids},
                                  {"content", "<pad>"},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", true}});
  ASSERT_OK(WriteFile(folder + "/tokenizer.json", json.dump()));
  const auto tokenizer = ModelTokenizer::Open(folder, num_ids);
  ASSERT_OK(tokenizer);
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_THAT(tokenizer->warnings()[0], ::testing::HasSubstr("<pad>"));
  EXPECT_EQ(tokenizer->EncodePrompt("a text"), whole->EncodePrompt("a text"));
  EXPECT_EQ(tokenizer->tokenizer().vocab_size(), num_ids);
  const auto refused = [&](const auto& encode) {
    EXPECT_THROWS_ERROR(encode(), absl::StatusCode::kInvalidArgument,
                        "the text holds \"<pad>\"");
  };
  refused([&] { tokenizer->EncodePrompt("a <pad>"); });
  refused([&] { tokenizer->EncodeTemplate("a <pad>"); });
  refused([&] { tokenizer->tokenizer().Encode("<pad>"); });
  // With one row more it is a token as any other.
  const auto more = ModelTokenizer::Open(folder, num_ids + 1);
  ASSERT_OK(more);
  EXPECT_TRUE(more->warnings().empty());
  EXPECT_EQ(more->EncodePrompt("<pad>").back(), num_ids);
}

}  // namespace
}  // namespace tessera
