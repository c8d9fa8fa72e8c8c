// Text becomes ids once, and windows that predict every token once.
#include "runtime/data/text_dataset.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string MakeText(const std::string& name, const std::string& text) {
  EXPECT_TRUE(WriteFile(TestPath(name), text).ok());
  return TestPath(name);
}

std::vector<int64_t> All(const TokenFile& tokens) {
  std::vector<int64_t> ids(tokens.num_tokens());
  tokens.Copy(0, tokens.num_tokens(), ids.data());
  return ids;
}

std::shared_ptr<const TokenFile> Tokens(const std::vector<std::string>& texts) {
  auto tokens =
      OpenCachedTokens(texts, ByteTokenizer(), TestPath("cache/tokens"));
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *tokens;
}

TEST(TextDatasetTest, BytesAreTheirOwnIds) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const std::vector<int32_t> ids = tokenizer.Encode(all);
  EXPECT_EQ(ids[200], 200);
  EXPECT_EQ(tokenizer.Decode(ids), all);
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{65, -1, 256, 66}), "AB");
}

TEST(TextDatasetTest, TextsStandBehindEachOther) {
  const auto tokens = Tokens(
      {MakeText("a", "AB\n"), MakeText("empty", ""), MakeText("b", "C")});
  EXPECT_THAT(All(*tokens), ElementsAre(65, 66, 10, 67));
  EXPECT_EQ(tokens->vocab_size(), 256);
}

TEST(TextDatasetTest, TextIsTokenisedOnceAndAgainWhenItChanges) {
  const std::string path = MakeText("once", "first");
  const auto first = Tokens({path});
  // Hidden from the text's identity: the cached file must answer.
  const auto time = std::filesystem::last_write_time(path);
  MakeText("once", "other");
  std::filesystem::last_write_time(path, time);
  EXPECT_EQ(Tokens({path})->fingerprint(), first->fingerprint());
  MakeText("once", "longer than first");
  EXPECT_NE(Tokens({path})->fingerprint(), first->fingerprint());
}

TEST(TextDatasetTest, LongTextsAreCutIntoPiecesWithoutLoss) {
  std::string text;
  while (text.size() < (size_t{9} << 20)) {
    text += std::to_string(text.size()) + "\n";
  }
  const auto tokens = Tokens({MakeText("long", text)});
  ASSERT_EQ(tokens->num_tokens(), static_cast<int64_t>(text.size()));
  const std::vector<int64_t> ids = All(*tokens);
  EXPECT_EQ(std::string(ids.begin(), ids.end()), text);
}

// A word is its number of bytes, with the space before it, which the first of a
// text is given; the end of a line is a token of its own.
class WordTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "words"; }
  int64_t vocab_size() const override { return 100000; }
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = text.find_first_of(" \n", begin + 1);
      if (end == std::string_view::npos) end = text.size();
      if (text[begin] == '\n') end = begin + 1;
      const bool marked = begin > 0 || text[0] == ' ' || text[0] == '\n';
      ids.push_back(static_cast<int32_t>(end - begin) + (marked ? 0 : 1));
      begin = end;
    }
    return ids;
  }
  std::string Decode(std::span<const int32_t>) const override { return ""; }
};

std::vector<int64_t> FileOf(const std::string& text,
                            const Tokenizer& tokenizer) {
  const std::string path = TestPath("pieces.tokens");
  EXPECT_TRUE(WriteTokenFile(path, {MakeText("p", text)}, tokenizer).ok());
  return All(**TokenFile::Open(path));
}

TEST(TextDatasetTest, ALongLineIsCutBetweenCharacters) {
  // Pieces end at an even byte; these characters begin at odd ones.
  std::string text = "x";
  while (text.size() < (size_t{5} << 20)) text += "\u00e9";
  const std::vector<int64_t> ids = FileOf(text, ByteTokenizer());
  EXPECT_EQ(std::string(ids.begin(), ids.end()), text);
  class Characters final : public Tokenizer {
   public:
    std::string name() const override { return "characters"; }
    int64_t vocab_size() const override { return 100000; }
    std::vector<int32_t> Encode(std::string_view bytes) const override {
      std::vector<int32_t> codes;
      for (size_t i = 0; i < bytes.size();) {
        const Utf8Character c = DecodeUtf8(bytes, i);
        codes.push_back(static_cast<int32_t>(c.code));
        i += c.num_bytes;
      }
      return codes;
    }
    std::string Decode(std::span<const int32_t>) const override { return ""; }
  };
  const std::vector<int32_t> once = Characters().Encode(text);
  EXPECT_EQ(FileOf(text, Characters()),
            std::vector<int64_t>(once.begin(), once.end()));
}

TEST(TextDatasetTest, ALongTextIsCutWhereAllOfItWouldBe) {
  for (const std::vector<std::string>& separators :
       std::vector<std::vector<std::string>>{
           {" "}, {"\n"}, {" \n"}, {"   "}, {"\n\n"}, {" ", "\n", "\n  "}}) {
    std::string text;
    while (text.size() < (size_t{9} << 20)) {
      text += std::string(1 + text.size() % 7, 'w');
      text += separators[text.size() % separators.size()];
    }
    const std::vector<int32_t> once = WordTokenizer().Encode(text);
    EXPECT_EQ(FileOf(text, WordTokenizer()),
              std::vector<int64_t>(once.begin(), once.end()))
        << "first separator \"" << separators[0] << "\"";
  }
}

class WideTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "wide"; }
  int64_t vocab_size() const override { return 100000; }
  std::vector<int32_t> Encode(std::string_view) const override {
    return {1, 99999};
  }
  std::string Decode(std::span<const int32_t>) const override { return ""; }
};

TEST(TextDatasetTest, LargeVocabulariesHaveWideIds) {
  const std::string path = TestPath("wide.tokens");
  ASSERT_TRUE(WriteTokenFile(path, {MakeText("w", "x")}, WideTokenizer()).ok());
  EXPECT_THAT(All(**TokenFile::Open(path)), ElementsAre(1, 99999));
}

TEST(TextDatasetTest, WrongFilesAreRefused) {
  const auto missing = OpenCachedTokens({TestPath("none.txt")}, ByteTokenizer(),
                                        TestPath("cache"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.txt"));
  const auto folder =
      OpenCachedTokens({TestPath("")}, ByteTokenizer(), TestPath("cache"));
  EXPECT_THAT(std::string(folder.status().message()),
              HasSubstr("wanted a regular file"));
  const auto text = TokenFile::Open(MakeText("t", std::string(100, 'x')));
  EXPECT_THAT(std::string(text.status().message()),
              HasSubstr("is no token file"));
  const std::string path = TestPath("cut.tokens");
  ASSERT_TRUE(
      WriteTokenFile(path, {MakeText("c", "abc")}, ByteTokenizer()).ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(std::string(TokenFile::Open(path).status().message()),
              HasSubstr("wanted 3 tokens of 2 bytes, found 5 bytes"));
}

TEST(TextDatasetTest, EveryTokenButTheFirstIsPredictedOnce) {
  const TextDataset data(Tokens({MakeText("d", "0123456789ab")}), 1, 12, 4);
  EXPECT_EQ(data.num_windows(), 3);
  EXPECT_EQ(data.num_predicted(), 3);
  const Tensor batch = data.Batch(std::vector<int64_t>{2, 0, 1});
  EXPECT_EQ(batch.shape(), Shape({3, 4}));
  EXPECT_THAT(
      batch.ToVector<int64_t>(),
      ElementsAre('7', '8', '9', 'a', '1', '2', '3', '4', '4', '5', '6', '7'));
  EXPECT_EQ(data.Batch({}).shape(), Shape({0, 4}));
}

TEST(TextDatasetTest, TheEndOfTheTextIsForValidation) {
  const auto tokens = Tokens({MakeText("s", std::string(100, 'x'))});
  const auto split = SplitText(tokens, 5, 0.25);
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->train.num_windows(), 74 / 4);
  EXPECT_EQ(split->validation.num_windows(), 24 / 4);
  EXPECT_EQ(SplitText(tokens, 50, 0.0)->validation.num_windows(), 1);
  EXPECT_THAT(std::string(SplitText(tokens, 51, 0.0).status().message()),
              HasSubstr("has 100 tokens, wanted at least one window of 51"));
}

TEST(TextDatasetTest, ChecksumsOfBytesAndFilesAgree) {
  const std::string text(3 << 20, 'y');
  EXPECT_EQ(*FileChecksum(MakeText("y", text)), Checksum(text));
  EXPECT_EQ(*FileChecksum(MakeText("y", "")), Checksum(""));
  EXPECT_NE(Checksum("a"), Checksum("b"));
  EXPECT_EQ(ChecksumText(0xabc), "0000000000000abc");
}

}  // namespace
}  // namespace tessera
