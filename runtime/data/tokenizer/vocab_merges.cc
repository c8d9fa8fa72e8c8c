#include "runtime/data/tokenizer/vocab_merges.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"
#include "runtime/data/tokenizer/json_node.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json ByteLevel(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

// {} for a file that is not there.
Json ParseObject(const std::string& text, const char* name) {
  if (text.empty()) return Json::object();
  absl::StatusOr<Json> json = ParseJsonObject(text);
  if (!json.ok()) throw Error(Annotate(json.status(), name));
  return *std::move(json);
}

// One folder's files on their way to a tokenizer.json.
class Converter {
 public:
  explicit Converter(const VocabMergesFiles& files)
      : files_(files),
        vocab_(ParseObject(files.vocab_json, "vocab.json")),
        config_(
            ParseObject(files.tokenizer_config_json, "tokenizer_config.json")),
        special_(ParseObject(files.special_tokens_map_json,
                             "special_tokens_map.json")) {
    for (const auto& [token, id] : vocab_.items()) {
      Count(token, id);
    }
    const Json more = ParseObject(files.added_tokens_json, "added_tokens.json");
    for (const auto& [token, id] : more.items()) {
      Count(token, id);
      added_[id.get<int64_t>()] = Token(token, id, /*special=*/false);
    }
  }

  std::string Convert() {
    const std::string name =
        JsonNode(config_, "tokenizer_config.json").Has("tokenizer_class")
            ? JsonNode(config_, "tokenizer_config.json").Text("tokenizer_class")
            : "GPT2Tokenizer";
    const bool is_qwen2 = name.starts_with("Qwen2Tokenizer");
    if (!is_qwen2 && !name.starts_with("GPT2Tokenizer")) {
      throw Error(absl::UnimplementedError(absl::StrCat(
          "tokenizer_config.json: tokenizer_class \"", Shortened(name),
          "\" without a tokenizer.json is not supported; GPT2Tokenizer and "
          "Qwen2Tokenizer are")));
    }
    AddTokens(is_qwen2);
    Json json = {{"version", "1.0"},
                 {"added_tokens", Json::array()},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", ByteLevel(Flag("add_prefix_space"), true)},
                 {"post_processor", nullptr},
                 {"decoder", ByteLevel(true, true)}};
    if (is_qwen2) SetQwen2(json);
    for (const auto& [id, token] : added_) {
      json["added_tokens"].push_back(token);
    }
    if (Flag("add_bos_token")) json["post_processor"] = BosTemplate();
    // Large, and JSON already: not as trees.
    std::string text = json.dump();
    text.pop_back();
    absl::StrAppend(&text, ",\"model\":{\"type\":\"BPE\",\"merges\":[",
                    Merges(), "],\"vocab\":", files_.vocab_json, "}}");
    return text;
  }

 private:
  static Json Token(const std::string& content, int64_t id, bool special) {
    return {{"id", id},          {"content", content}, {"single_word", false},
            {"lstrip", false},   {"rstrip", false},    {"normalized", !special},
            {"special", special}};
  }

  void Count(const std::string& token, const Json& id) {
    next_id_ = std::max<int64_t>(
        next_id_, int64_t{JsonNode(id, Shortened(token)).AsIndex()} + 1);
  }

  bool Flag(const char* name) const {
    return JsonNode(config_, "tokenizer_config.json").Flag(name, false);
  }

  // "<|endoftext|>", or an object with its text; empty where there is none.
  std::string SpecialToken(const char* name) const {
    for (const Json* file : {&special_, &config_}) {
      const JsonNode root(*file, "");
      if (!root.Has(name)) continue;
      const JsonNode token = root.At(name);
      return (*file)[name].is_string() ? token.AsText() : token.Text("content");
    }
    return "";
  }

  void AddTokens(bool is_qwen2) {
    if (JsonNode(config_, "").Has("added_tokens_decoder")) {
      for (const auto& [id, token] : config_["added_tokens_decoder"].items()) {
        AddDescribed(id, token);
      }
    }
    for (const char* name :
         {"unk_token", "bos_token", "eos_token", "pad_token"}) {
      std::string token = SpecialToken(name);
      // The class's own.
      const bool has_default =
          name != std::string(is_qwen2 ? "bos_token" : "pad_token");
      if (token.empty() && has_default && !special_.contains(name) &&
          !config_.contains(name)) {
        token = "<|endoftext|>";
      }
      if (!token.empty()) AddSpecial(token);
    }
    if (!special_.contains("additional_special_tokens")) return;
    for (const JsonNode& token :
         JsonNode(special_, "").Items("additional_special_tokens")) {
      AddSpecial(token.AsText());
    }
  }

  // As it stands in "added_tokens_decoder".
  void AddDescribed(const std::string& id_text, const Json& described) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(id_text, &id) || id < 0 || !described.is_object() ||
        !described.contains("content")) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "tokenizer_config.json: \"added_tokens_decoder\": wanted tokens by "
          "their ids, got \"",
          Shortened(id_text), "\"")));
    }
    Json token = described;
    token["id"] = id;
    added_[id] = token;
    next_id_ = std::max(next_id_, id + 1);
  }

  void AddSpecial(const std::string& content) {
    for (auto& [id, token] : added_) {
      if (token.at("content") != content) continue;
      token["special"] = true;
      return;
    }
    const auto found = vocab_.find(content);
    const int64_t id =
        found == vocab_.end() ? next_id_++ : found->get<int64_t>();
    added_[id] = Token(content, id, /*special=*/true);
  }

  void SetQwen2(Json& json) const {
    json["normalizer"] = {{"type", "NFC"}};
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", kQwen2Pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         Json::array({split, ByteLevel(Flag("add_prefix_space"), false)})}};
  }

  Json BosTemplate() const {
    std::string bos = SpecialToken("bos_token");
    if (bos.empty()) bos = "<|endoftext|>";
    int64_t bos_id = 0;
    for (const auto& [id, token] : added_) {
      if (token.at("content") == bos) bos_id = id;
    }
    const Json token = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
    const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    return {{"type", "TemplateProcessing"},
            {"single", Json::array({token, text})},
            {"pair", Json::array({token, text, token, second})},
            {"special_tokens",
             {{bos, {{"id", bos}, {"ids", {bos_id}}, {"tokens", {bos}}}}}}};
  }

  // The lines as JSON strings.
  std::string Merges() const {
    std::string merges;
    for (absl::string_view line : absl::StrSplit(files_.merges_txt, '\n')) {
      line = absl::StripTrailingAsciiWhitespace(line);
      if (line.empty() || absl::StartsWith(line, "#version")) continue;
      absl::StrAppend(&merges, merges.empty() ? "" : ",",
                      Json(std::string(line)).dump());
    }
    return merges;
  }

  const VocabMergesFiles& files_;
  const Json vocab_;
  const Json config_;
  const Json special_;
  std::map<int64_t, Json> added_;  // By id.
  int64_t next_id_ = 0;
};

}  // namespace

absl::StatusOr<std::string> TokenizerJsonOf(const VocabMergesFiles& files) {
  std::string json;
  RETURN_IF_ERROR(Try([&] { json = Converter(files).Convert(); }));
  return json;
}

absl::StatusOr<std::string> ReadVocabMerges(const std::string& folder) {
  VocabMergesFiles files;
  ASSIGN_OR_RETURN(files.vocab_json, ReadFile(folder + "/vocab.json"));
  ASSIGN_OR_RETURN(files.merges_txt, ReadFile(folder + "/merges.txt"));
  const std::pair<const char*, std::string*> others[] = {
      {"/tokenizer_config.json", &files.tokenizer_config_json},
      {"/special_tokens_map.json", &files.special_tokens_map_json},
      {"/added_tokens.json", &files.added_tokens_json}};
  for (const auto& [name, text] : others) {
    absl::StatusOr<std::string> read = ReadFile(folder + name);
    if (absl::IsNotFound(read.status())) continue;
    ASSIGN_OR_RETURN(*text, std::move(read));
  }
  return TokenizerJsonOf(files);
}

}  // namespace tessera
