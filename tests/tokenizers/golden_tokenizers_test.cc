// Tokenizers that others saved give the ids and the texts that the tokenizers
// package gave. Walks every folder below $TESSERA_GOLDEN.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/data/tokenizer/stream_decoder.h"
#include "runtime/data/tokenizer/tokenizer_json.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> GoldenFolders() {
  const char* root = std::getenv("TESSERA_GOLDEN");
  std::vector<std::string> folders;
  for (const auto& entry : fs::recursive_directory_iterator(
           root == nullptr ? "tests/golden" : root,
           fs::directory_options::follow_directory_symlink)) {
    if (entry.path().filename() == "encodings.json") {
      folders.push_back(entry.path().parent_path());
    }
  }
  std::sort(folders.begin(), folders.end());
  TESSERA_CHECK(!folders.empty());
  return folders;
}

struct Row {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<int32_t> ids_without_special;
  std::string decoded;
  std::string decoded_skip_special;
};

std::vector<Row> ReadRows(const std::string& folder) {
  std::ifstream file(folder + "/encodings.json");
  std::vector<Row> rows;
  for (const auto& row : nlohmann::json::parse(file)) {
    rows.push_back({row["text"], row["ids"], row["ids_without_special"],
                    row["decoded"], row["decoded_skip_special"]});
  }
  return rows;
}

class GoldenTokenizersTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto tokenizer = LoadTokenizer(GetParam());
    ASSERT_OK(tokenizer);
    tokenizer_ = *std::move(tokenizer);
    rows_ = ReadRows(GetParam());
    ASSERT_FALSE(rows_.empty());
  }

  std::unique_ptr<BpeTokenizer> tokenizer_;
  std::vector<Row> rows_;
};

TEST_P(GoldenTokenizersTest, Encodes) {
  for (const Row& row : rows_) {
    EXPECT_EQ(tokenizer_->Encode(row.text, {}), row.ids) << row.text;
    EXPECT_EQ(tokenizer_->Encode(row.text), row.ids_without_special)
        << row.text;
  }
}

TEST_P(GoldenTokenizersTest, Decodes) {
  for (const Row& row : rows_) {
    EXPECT_EQ(tokenizer_->Decode(row.ids_without_special), row.decoded);
    EXPECT_EQ(tokenizer_->Decode(row.ids, {.skip_special_tokens = true}),
              row.decoded_skip_special);
  }
}

TEST_P(GoldenTokenizersTest, StreamsTheSameText) {
  for (const Row& row : rows_) {
    StreamDecoder stream(*tokenizer_, {});
    std::string text;
    for (const int32_t id : row.ids_without_special) text += stream.Push(id);
    text += stream.Finish();
    EXPECT_EQ(text, row.decoded);
  }
}

bool HasSpaceAround(const std::string& text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n'; };
  return text.empty() || is_space(text.front()) || is_space(text.back());
}

// Some tokenizers change texts. What the rows say that they keep, they keep in
// long texts too: lines that decode to themselves, with a separator between
// them that one of the lines has inside. What is changed at the ends of a text
// is not there at the ends of one of the lines. Around an added token, a prefix
// that is put before every text is put before the rest too, and comes out as a
// space.
TEST_P(GoldenTokenizersTest, TenMegabytesRoundTrip) {
  constexpr size_t kNumBytes = 10'000'000;
  std::vector<std::string> kept;
  std::string separator;
  for (const Row& row : rows_) {
    const bool has_added = std::any_of(
        row.ids_without_special.begin(), row.ids_without_special.end(),
        [this](int32_t id) { return tokenizer_->IsAdded(id); });
    if (row.decoded != row.text || has_added || row.text.empty()) continue;
    kept.push_back(row.text);
    for (const char* inside : {" ", "\n"}) {
      const size_t at = row.text.find_first_not_of(" \n");
      const size_t end = row.text.find_last_not_of(" \n");
      const size_t found = row.text.find(inside, at);
      if (found < end && separator != "\n") separator = inside;
    }
  }
  std::vector<std::string> lines;
  for (const std::string& line : kept) {
    if (separator == "\n" || !HasSpaceAround(line)) lines.push_back(line);
  }
  if (separator.empty() || lines.empty()) {
    GTEST_SKIP() << "no rows that keep their spaces";
  }
  std::mt19937 random(1);
  std::string text = kept.back();
  while (text.size() < kNumBytes) {
    text += separator + lines[random() % lines.size()];
  }
  text += separator + kept.back();
  EXPECT_TRUE(tokenizer_->Decode(tokenizer_->Encode(text)) == text);
}

INSTANTIATE_TEST_SUITE_P(Folders, GoldenTokenizersTest,
                         ::testing::ValuesIn(GoldenFolders()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           std::string name = fs::path(info.param).filename();
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(c); }, '_');
                           return std::to_string(info.index) + "_" + name;
                         });

}  // namespace
}  // namespace tessera
