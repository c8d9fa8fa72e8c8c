#include "runtime/data/tokenizer/tokenizer_json.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/json_node.h"
#include "runtime/data/tokenizer/read_steps.h"
#include "runtime/data/tokenizer/tokenizer_file.h"
#include "runtime/data/tokenizer/vocab_merges.h"

namespace tessera {
namespace {

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(absl::InvalidArgumentError(message));
}

void CheckModel(const JsonNode& model) {
  if (model.Has("type") && model.Text("type") != "BPE") {
    model.At("type").Refuse("\"" + Shortened(model.Text("type")) +
                            "\" is not supported; is: BPE");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Has(key) && !model.Text(key).empty()) {
      model.At(key).Refuse("\"" + Shortened(model.Text(key)) +
                           "\" is not supported; is: null");
    }
  }
  if (model.Has("dropout") && model.At("dropout").AsNumber() != 0) {
    model.At("dropout").Refuse("is not supported; is: null");
  }
}

BpeOptions ReadOptions(const JsonNode& model, bool byte_level) {
  BpeOptions options;
  if (model.Has("unk_token")) options.unk_token = model.Text("unk_token");
  options.fuse_unk = model.Flag("fuse_unk", false);
  options.byte_fallback = model.Flag("byte_fallback", false);
  options.ignore_merges = model.Flag("ignore_merges", false);
  options.byte_level = byte_level;
  return options;
}

MergeTable ReadMerges(const TokenizerFile& file,
                      std::vector<std::string>& warnings) {
  MergeTable merges;
  size_t num_repeated = 0;
  std::string joined;
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const MergeText text = file.merges.At(i);
    joined.assign(text.left);
    joined += text.right;
    const auto find = [&](std::string_view token) {
      const int32_t id = file.vocab.Find(token);
      if (id != kNoToken) return id;
      Refuse(absl::StrCat("model.merges[", i, "]: \"",
                          Shortened(std::string(token)),
                          "\" is not in model.vocab"));
    };
    const bool is_new = merges.Add({.left = find(text.left),
                                    .right = find(text.right),
                                    .rank = static_cast<uint32_t>(i),
                                    .result = find(joined)});
    if (!is_new) ++num_repeated;
  }
  if (num_repeated > 0) {
    warnings.push_back(absl::StrCat("model.merges: ", num_repeated,
                                    " stand twice; the last one counts"));
  }
  return merges;
}

// What an added token and the vocabulary say of its id must agree.
void CheckAddedTokens(const std::vector<AddedToken>& tokens,
                      const Vocabulary& vocab) {
  Vocabulary added;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const AddedToken& token = tokens[i];
    const std::string where = absl::StrCat("added_tokens[", i, "]: ");
    const absl::Status status = added.Add(token.content, token.id);
    if (!status.ok()) Refuse(where + std::string(status.message()));
    const int32_t id = vocab.Find(token.content);
    const auto text = vocab.TextOf(token.id);
    if (id != kNoToken && id != token.id) {
      Refuse(absl::StrCat(where, "\"", Shortened(token.content),
                          "\" has the id ", token.id, ", but in model.vocab ",
                          id));
    }
    if (id == kNoToken && text.has_value()) {
      Refuse(absl::StrCat(where, "the id ", token.id, " is also \"",
                          Shortened(std::string(*text)), "\" in model.vocab"));
    }
  }
}

void CheckFile(const TokenizerFile& file, const JsonNode& root,
               std::vector<std::string>& warnings) {
  if (root.Has("version") && root.Text("version") != "1.0") {
    root.At("version").Refuse("\"" + Shortened(root.Text("version")) +
                              "\" is not supported; is: 1.0");
  }
  if (!root.Has("model")) Refuse("\"model\" is missing");
  CheckModel(root.At("model"));
  if (!file.has_vocab) Refuse("model.vocab is missing");
  if (!file.has_merges) Refuse("model.merges is missing");
  for (const char* key : {"truncation", "padding"}) {
    if (root.Has(key)) {
      warnings.push_back(std::string(key) +
                         ": ignored; texts keep their length");
    }
  }
}

// Bytes that text hardly has: control characters, DEL, and what begins no
// character, or only ones of planes without characters. SmolLM2's vocabulary
// lacks some of them.
bool IsRareByte(int byte) {
  const bool white_space = byte == '\t' || byte == '\n' || byte == '\r';
  return (byte > 0 && byte < 0x20 && !white_space) || byte == 0x7F ||
         byte == 0xC0 || byte == 0xC1 || byte == 0xF1 || byte == 0xF2 ||
         byte >= 0xF5;
}

void CheckBytes(const BpeModel& model, std::vector<std::string>& warnings) {
  std::string rare;
  for (int byte = 0; byte < 256; ++byte) {
    if (model.HasByte(static_cast<uint8_t>(byte))) continue;
    if (!IsRareByte(byte)) {
      Refuse(absl::StrFormat(
          "model.vocab: wanted the characters of all 256 bytes, as "
          "pre_tokenizer is ByteLevel; that of byte 0x%02X is missing",
          byte));
    }
    absl::StrAppendFormat(&rare, " 0x%02X", byte);
  }
  if (rare.empty()) return;
  warnings.push_back("model.vocab: texts lose the bytes" + rare +
                     ", whose characters are no tokens");
}

BpeModel ReadModel(TokenizerFile& file, const JsonNode& root,
                   std::vector<std::string>& warnings) {
  const bool byte_level =
      root.Has("pre_tokenizer") && EndsWithByteLevel(root.At("pre_tokenizer"));
  MergeTable merges = ReadMerges(file, warnings);
  absl::StatusOr<BpeModel> model =
      BpeModel::Create(ReadOptions(root.At("model"), byte_level),
                       std::move(file.vocab), std::move(merges));
  if (!model.ok()) {
    Refuse("model." + std::string(model.status().message()));
  }
  if (byte_level) CheckBytes(*model, warnings);
  return *std::move(model);
}

ParsedTokenizer Parse(std::string_view json_text) {
  TokenizerFile file = OrThrow(ReadTokenizerFile(json_text));
  const JsonNode root(file.rest, "");
  ParsedTokenizer parsed;
  CheckFile(file, root, parsed.warnings);
  CheckAddedTokens(file.added_tokens, file.vocab);
  BpeTokenizerParts parts;
  parts.name = absl::StrFormat("tokenizer.json %016x",
                               XXH3_64bits(json_text.data(), json_text.size()));
  if (root.Has("normalizer")) {
    parts.normalizer = ReadNormalizer(root.At("normalizer"));
  }
  if (root.Has("pre_tokenizer")) {
    parts.pre_tokenizer = ReadPreTokenizer(root.At("pre_tokenizer"));
  }
  if (root.Has("post_processor")) {
    parts.post_processor = ReadPostProcessor(root.At("post_processor"));
  }
  if (root.Has("decoder")) parts.decoder = ReadDecoder(root.At("decoder"));
  parts.model = ReadModel(file, root, parsed.warnings);
  parts.added_tokens = std::move(file.added_tokens);
  parsed.tokenizer = std::make_unique<BpeTokenizer>(std::move(parts));
  return parsed;
}

}  // namespace

absl::StatusOr<ParsedTokenizer> ParseTokenizerJson(std::string_view json_text) {
  ParsedTokenizer parsed;
  const absl::Status status = Try([&] { parsed = Parse(json_text); });
  if (!status.ok()) return Annotate(status, "tokenizer.json");
  return parsed;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> LoadTokenizer(
    const std::string& path) {
  std::error_code ignored;  // Reading says what is wrong.
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string file = is_folder ? path + "/tokenizer.json" : path;
  absl::StatusOr<std::string> read = ReadFile(file);
  if (is_folder && absl::IsNotFound(read.status()) &&
      std::filesystem::exists(path + "/vocab.json", ignored)) {
    read = ReadVocabMerges(path);
    if (!read.ok()) return Annotate(read.status(), path);
  }
  ASSIGN_OR_RETURN(const std::string text, std::move(read));
  absl::StatusOr<ParsedTokenizer> parsed = ParseTokenizerJson(text);
  if (!parsed.ok()) return Annotate(parsed.status(), file);
  for (const std::string& warning : parsed->warnings) {
    spdlog::warn("{}: {}", file, warning);
  }
  return std::move(parsed->tokenizer);
}

}  // namespace tessera
