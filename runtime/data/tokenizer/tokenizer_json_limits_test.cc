// Tokenizer files that end early, or are made to cost memory, are errors,
// without a crash and without memory that is large beside the file.
#include <filesystem>

#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/tokenizer_json.h"
#include "runtime/data/utf8.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr const char* kFolder = "tests/golden/tokenizers";
// The tables of a model whatever its size, and messages.
constexpr int64_t kFixedBytes = int64_t{2} << 20;

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    files.push_back(
        OrThrow(ReadFile(entry.path().string() + "/tokenizer.json")));
  }
  TESSERA_CHECK(!files.empty());
  return files;
}

// Parses, and uses what came out of it.
void TryText(const std::string& text) {
  const AllocationPeak peak;
  const absl::StatusOr<ParsedTokenizer> parsed = ParseTokenizerJson(text);
  EXPECT_LT(peak.bytes(), 10 * static_cast<int64_t>(text.size()) + kFixedBytes);
  if (!parsed.ok()) {
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << parsed.status();
    EXPECT_LT(parsed.status().message().size(), 1000u);
    return;
  }
  const absl::Status status = Try([&] {
    const auto ids =
        parsed->tokenizer->Encode(" Hello w\u00F6rld 12 <s>zebra\n\u6771", {});
    EXPECT_TRUE(IsUtf8(parsed->tokenizer->Decode(ids)));
  });
  EXPECT_TRUE(status.ok() ||
              status.code() == absl::StatusCode::kResourceExhausted)
      << status;
}

TEST(TokenizerJsonLimitsTest, Truncations) {
  for (const std::string& file : GoldenFiles()) {
    for (size_t size = 0; size < file.size(); size += 61) {
      const std::string text = file.substr(0, size);
      EXPECT_FALSE(ParseTokenizerJson(text).ok());
      TryText(text);
    }
  }
}

// Texts that are made to cost memory.
TEST(TokenizerJsonLimitsTest, Bombs) {
  constexpr int kNum = 200000;
  for (const auto& [before, unit] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "["},
           {"", "{\"a\":"},
           {"{\"x\":", "["},
           {"{\"decoder\":", "["},
           {"{\"decoder\":[", "0,"},
           {"{\"decoder\":[", "{},"},
           {"{\"model\":{\"merges\":[", "\"a b\","},
           {"{\"model\":{\"merges\":", "["},
           {"{\"model\":{\"merges\":[", "[],"},
           {"{\"model\":{\"vocab\":{", "\"a\":1,"},
           {"{\"model\":{", "\"x\":1,"},
           {"{\"added_tokens\":[", "{},"},
           {"{\"added_tokens\":[", "{\"id\":1,\"content\":\"abc\"},"}}) {
    std::string text = before;
    for (int i = 0; i < kNum; ++i) text += unit;
    TryText(text);
  }
}

TEST(TokenizerJsonLimitsTest, ManyTokensStayInBounds) {
  std::string text = "{\"model\":{\"vocab\":{";
  constexpr int kNum = 100000;
  for (int i = 0; i < kNum; ++i) {
    text += "\"" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  }
  text.back() = '}';
  TryText(text + ",\"merges\":[]}}");
}

}  // namespace
}  // namespace tessera
