// tokenizer.json files, texts, patterns, and chat templates.
#include <algorithm>
#include <memory>

#include "kernels/status.h"
#include "runtime/data/tokenizer/chat_template.h"
#include "runtime/data/tokenizer/pattern.h"
#include "runtime/data/tokenizer/stream_decoder.h"
#include "runtime/data/tokenizer/tokenizer_json.h"
#include "runtime/data/tokenizer/vocab_merges.h"
#include "runtime/data/utf8.h"
#include "tests/formats/golden_files.h"
#include "tests/fuzz/fuzz_reader.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// The tables of a tokenizer and its memory of words, whatever the file's size.
constexpr int64_t kFixedBytes = int64_t{4} << 20;

// Bytes that are no character wait for what comes, and are looked at again.
constexpr size_t kMaxStreamed = 100;

bool IsTokenizer(const std::string& path) {
  return path.ends_with("/tokenizer.json");
}

// A pattern may reach its limits, with a text of others.
void ExpectDoneOrLimit(const absl::Status& status) {
  EXPECT_TRUE(status.ok() ||
              status.code() == absl::StatusCode::kResourceExhausted)
      << status;
}

void EncodeAndDecode(const BpeTokenizer& tokenizer, const std::string& text) {
  ExpectDoneOrLimit(Try([&] {
    const auto ids = tokenizer.Encode(text, {});
    const std::string decoded = tokenizer.Decode(ids);
    EXPECT_TRUE(IsUtf8(decoded));
    if (ids.size() > kMaxStreamed) return;
    StreamDecoder stream(tokenizer, {});
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    EXPECT_EQ(streamed + stream.Finish(), decoded);
  }));
}

void ReadTokenizer(const std::string& text) {
  const auto parsed = ParseTokenizerJson(text);
  if (parsed.ok()) {
    EncodeAndDecode(*parsed->tokenizer,
                    " Hello w\u00F6rld 12 <s>zebra\n\u6771\xFF\u0301");
    return;
  }
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
      << parsed.status();
  EXPECT_LT(parsed.status().message().size(), 1000u);
}

std::vector<std::shared_ptr<BpeTokenizer>> GoldenTokenizers() {
  std::vector<std::shared_ptr<BpeTokenizer>> tokenizers;
  for (const std::string& path : GoldenPaths("tokenizers", IsTokenizer)) {
    tokenizers.emplace_back(OrThrow(LoadTokenizer(path)));
    EncodeAndDecode(*tokenizers.back(), "makes its memory of words");
  }
  return tokenizers;
}

void ReadOldFolder(const std::string& bytes) {
  VocabMergesFiles files;
  std::string* const texts[] = {
      &files.vocab_json, &files.merges_txt, &files.tokenizer_config_json,
      &files.special_tokens_map_json, &files.added_tokens_json};
  size_t at = 0;
  for (std::string* text : texts) {
    const size_t end = std::min(bytes.find('\0', at), bytes.size());
    *text = bytes.substr(at, end - at);
    at = std::min(end + 1, bytes.size());
  }
  const auto json = TokenizerJsonOf(files);
  if (json.ok()) ReadTokenizer(*json);
}

// The files one behind the other, with a zero between.
std::vector<std::string> OldFolders() {
  std::string vocab = "{\"<|endoftext|>\":0";
  int id = 1;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printed =
        (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const char32_t c = printed ? byte : 0x100 + id;
    std::string key = ToUtf8(c);
    if (key == "\"" || key == "\\") key.insert(0, 1, '\\');
    vocab += ",\"" + key + "\":" + std::to_string(id++);
  }
  vocab += ",\"he\":" + std::to_string(id) + "}";
  const std::string zero(1, '\0');
  return {vocab + zero + "#version: 0.2\nh e\n" + zero +
              R"({"tokenizer_class":"GPT2Tokenizer","add_bos_token":true,)"
              R"("added_tokens_decoder":{"0":{"content":"<|endoftext|>",)"
              R"("special":true}}})" +
              zero +
              R"({"eos_token":{"content":"<|endoftext|>"},)"
              R"("additional_special_tokens":["<a>"]})" +
              zero + R"({"<b>":300})",
          vocab + zero + "h e" + zero +
              R"({"tokenizer_class":"Qwen2Tokenizer","eos_token":"<c>"})"};
}

void ReadPattern(const std::string& expression) {
  const auto pattern = Pattern::Regex(expression);
  if (!pattern.ok()) return;
  const std::string text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaab It's 12\u00BD \u6771";
  ExpectDoneOrLimit(Try([&] {
    size_t end = 0;
    for (const TextRange& match : pattern->FindAll(text)) {
      EXPECT_LE(end, match.begin);
      EXPECT_LE(match.begin, match.end);
      end = match.end;
    }
    EXPECT_LE(end, text.size());
  }));
}

void ReadChatTemplate(const std::string& text) {
  const auto chat = ChatTemplate::FromTokenizerConfig(text);
  if (!chat.ok()) return;
  const auto segments = chat->Render(
      {{"user", " Hello \xFF"}, {"assistant", ""}, {"", text}}, true);
  EXPECT_FALSE(JoinSegments(segments).empty());
}

const std::vector<std::string>& Patterns() {
  static const std::vector<std::string> patterns = {
      "'s|'t|'re| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
      "(?i:'s|'t|'re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s*[\\r\\n]+",
      "(a+)+$", "[[:alpha:]&&[^a-c]]{2,}+", "(?<n>\\w)\\k<n>|\\h+(?=x)|\\A\\z"};
  return patterns;
}

std::vector<std::string> ChatTemplates() {
  return {
      "{\"bos_token\":\"<s>\",\"chat_template\":\"{% for message in messages "
      "%}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
      "'<|im_end|>' + '\\n'}}{% endfor %}\"}",
      "{\"bos_token\":{\"content\":\"<|begin_of_text|>\"},\"chat_template\":"
      "[{\"name\":\"default\",\"template\":\"<|start_header_id|>"
      "<|end_header_id|>\\n\\n<|eot_id|>\"}]}",
      "{\"chat_template\":\"<|im_start|>system\\nYou are.<|im_end|>\"}"};
}

std::vector<std::string> Texts() {
  return {
      "Hello w\u00F6rld, it's 12345 o'clock <|endoftext|>\n\n  \u6771\u4EAC",
      "\u0041\u030A \uFB01 \U0001F469\u200D\U0001F467 \u2581 <0x41> <s>",
      std::string(3000, 'a') + std::string(300, ' ')};
}

std::vector<std::string> TextWords() {
  return {"\xFF",         "\xC3",   "\xED\xA0\x80", "\u0301",
          "\u2581",       "<s>",    "\uFFFD",       "\r\n",
          "<|endoftext|", "\u00A0", "<0x00>",       "'ll",
          "\u0130",       "\u1E9E", "\uFDFA",       std::string(1, '\0')};
}

}  // namespace

std::vector<FuzzReader> TokenizerReaders() {
  const std::vector<std::string> words = JsonWords(
      {"\"type\":", "\"merges\":[", "\"Sequence\"", "\"Regex\":\"(a+)+$\"",
       "\"id\":", "\"vocab\":{", "\"\\u2581\"", "\"ByteLevel\"", "\"Split\"",
       "\"normalizer\":", "\"added_tokens\":[", "\"Metaspace\"", "\"Replace\"",
       "\"Strip\"", "\"NFKC\"", "\"unk_token\":", "\"byte_fallback\":true,",
       "\"pattern\":{\"String\":\"\"}"});
  std::vector<FuzzReader> readers = {
      {"tokenizer_json",
       {GoldenContents("tokenizers", IsTokenizer), words, SplitJson},
       ReadTokenizer},
      {"tokenizer_old_folder", {OldFolders(), words, SplitJson}, ReadOldFolder},
      {"tokenizer_text",
       {Texts(), TextWords()},
       [tokenizers = GoldenTokenizers()](const std::string& text) {
         for (const auto& tokenizer : tokenizers) {
           EncodeAndDecode(*tokenizer, text);
         }
       }},
      {"pattern",
       {Patterns(),
        {"(a*)*", "{60000}", "(?R)", "\\C", "(?>", "(?<=", "\\p{Greek}", "[^",
         "[[:", "\\K", "(*", "{0,}", "++", "\\x{110000}", "\\Q", "(?x)",
         "\\1"}},
       ReadPattern},
      {"chat_template",
       {ChatTemplates(), JsonWords({"<|im_start|>", "<|im_end|>", "{%", "}}"}),
        SplitJson},
       ReadChatTemplate},
  };
  for (FuzzReader& reader : readers) reader.fixed_bytes = kFixedBytes;
  return readers;
}

}  // namespace tessera
