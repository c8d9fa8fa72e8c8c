// Damaged tokenizer files are errors, without a crash and without memory that
// is large beside the file.
#include <filesystem>
#include <random>

#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/counting_new.h"
#include "runtime/data/tokenizer/tokenizer_json.h"
#include "runtime/data/tokenizer/utf8.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr const char* kFolder = "tests/golden/tokenizers";
// The tables of a model whatever its size, and messages.
constexpr size_t kFixedBytes = size_t{2} << 20;

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
  const size_t before = StartCountingPeak();
  const absl::StatusOr<ParsedTokenizer> parsed = ParseTokenizerJson(text);
  EXPECT_LT(PeakBytes() - before, 10 * text.size() + kFixedBytes);
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

// One change to a text: bytes overwritten, taken out, doubled, moved, or words
// of the format put in.
void Mutate(std::mt19937& random, std::string& text) {
  static const std::vector<std::string> words = {"null",
                                                 "true",
                                                 "-1",
                                                 "2147483648",
                                                 "1e999",
                                                 "\"\"",
                                                 "{}",
                                                 "[]",
                                                 "[[",
                                                 "{\"",
                                                 "\"type\":",
                                                 "\"merges\":[",
                                                 "\\ud800",
                                                 "\xFF",
                                                 "\\u0000",
                                                 "\"Sequence\"",
                                                 "\"Regex\":\"(a+)+$\"",
                                                 "\"id\":",
                                                 "\"vocab\":{",
                                                 ",",
                                                 ":",
                                                 "}",
                                                 "]",
                                                 "\"\\u2581\""};
  if (text.empty()) return;
  const size_t at = random() % text.size();
  const size_t n = std::min<size_t>(1 + random() % 40, text.size() - at);
  switch (random() % 6) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, n);
      break;
    case 2:
      text.insert(at, text.substr(at, n));
      break;
    case 3:
      text.insert(at, words[random() % words.size()]);
      break;
    case 4:
      text.replace(at, n, words[random() % words.size()]);
      break;
    default:
      text.insert(at, text.substr(random() % text.size(), n));
      break;
  }
}

TEST(TokenizerJsonFuzzTest, Mutations) {
  std::mt19937 random(1);
  for (const std::string& file : GoldenFiles()) {
    for (int round = 0; round < 1000; ++round) {
      std::string text = file;
      // The vocabulary is most of the text: half of the changes elsewhere.
      const size_t vocab = text.find("\"vocab\"");
      std::string head = text.substr(0, vocab);
      const std::string tail = text.substr(vocab);
      const bool in_head = round % 2 == 0;
      for (size_t n = 1 + random() % 4; n > 0; --n) {
        Mutate(random, in_head ? head : text);
      }
      TryText(in_head ? head + tail : text);
    }
  }
}

TEST(TokenizerJsonFuzzTest, Truncations) {
  for (const std::string& file : GoldenFiles()) {
    for (size_t size = 0; size < file.size(); size += 61) {
      const std::string text = file.substr(0, size);
      EXPECT_FALSE(ParseTokenizerJson(text).ok());
      TryText(text);
    }
  }
}

// Texts that are made to cost memory.
TEST(TokenizerJsonFuzzTest, Bombs) {
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

TEST(TokenizerJsonFuzzTest, ManyTokensStayInBounds) {
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
