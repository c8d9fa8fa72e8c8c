#include "runtime/data/document_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/line_reader.h"
#include "runtime/data/tokenizer/json_node.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kWanted =
    R"({"text": ...}, {"prompt": ..., "completion": ...} or {"messages": [...]})";

absl::Status CheckUtf8(const std::string& text) {
  const size_t valid = ValidUtf8Prefix(text);
  if (valid == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted UTF-8; byte ", valid + 1, " is 0x",
      absl::Hex(static_cast<unsigned char>(text[valid]), absl::kZeroPad2),
      ", which begins no character there; convert the file to UTF-8"));
}

// What the parser says, without its own numbers of lines and errors.
absl::Status NoJson(const std::string& line, const Json::exception& error) {
  if (line.starts_with('[')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted an object a line, as ", kWanted,
        "; got the beginning of a list; write each of its members on a line"));
  }
  std::string why = error.what();
  if (const size_t id_end = why.find("] "); id_end != std::string::npos) {
    why.erase(0, id_end + 2);
  }
  if (const auto* place = dynamic_cast<const Json::parse_error*>(&error)) {
    const size_t at = why.find("syntax error");
    if (at != std::string::npos) why.erase(0, at);
    why = absl::StrCat("byte ", place->byte, ": ", why);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted JSON, as ", kWanted, "; ", why, "; mend or leave out the line"));
}

ChatMessage MessageOf(const JsonNode& node) {
  ChatMessage message = {node.Text("role"), node.Text("content")};
  for (const char* role : {"system", "user", "assistant"}) {
    if (message.role == role) return message;
  }
  node.At("role").Refuse(
      absl::StrCat("wanted system, user or assistant, got \"",
                   Shortened(message.role), "\"; leave such messages out"));
}

Document DocumentOf(const JsonNode& root) {
  if (root.Has("messages")) {
    ChatDocument chat;
    for (const JsonNode& message : root.Items("messages")) {
      chat.messages.push_back(MessageOf(message));
    }
    return chat;
  }
  if (root.Has("prompt") || root.Has("completion")) {
    return CompletionDocument{root.Text("prompt"), root.Text("completion")};
  }
  if (root.Has("text")) return TextDocument{root.Text("text")};
  std::vector<std::string> keys = root.Keys();
  for (const std::string& key : keys) {
    if (key != "text" && key != "messages" && key != "completion") continue;
    root.At(key).Refuse("wanted a value, got null; leave out the line");
  }
  constexpr size_t kMostKeys = 8;
  keys.resize(std::min(keys.size(), kMostKeys));
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "wanted ", kWanted, ", got an object with ",
      keys.empty() ? "no key" : "\"" + absl::StrJoin(keys, "\", \"") + "\"",
      "; rename the keys")));
}

absl::Status ReadJsonLines(const std::string& path, const TakeDocument& take) {
  ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  std::string line;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, lines.Next(line));
    if (!more) return absl::OkStatus();
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const absl::StatusOr<Document> document = ParseDocument(line);
    if (!document.ok()) return Annotate(document.status(), lines.Place());
    RETURN_IF_ERROR(take(*document, lines.Place()));
  }
}

}  // namespace

bool IsEmpty(const Document& document) {
  if (const auto* text = std::get_if<TextDocument>(&document)) {
    return text->text.empty();
  }
  if (const auto* chat = std::get_if<ChatDocument>(&document)) {
    return chat->messages.empty();
  }
  return std::get<CompletionDocument>(document).completion.empty();
}

absl::StatusOr<Document> ParseDocument(const std::string& line) {
  RETURN_IF_ERROR(CheckUtf8(line));
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::exception& error) {
    return NoJson(line, error);
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted an object, as ", kWanted, ", got a ", json.type_name()));
  }
  Document document;
  RETURN_IF_ERROR(
      Try([&] { document = DocumentOf(JsonNode(json, "document")); }));
  return document;
}

absl::Status ReadDocuments(const std::string& path, const TakeDocument& take) {
  for (const char* suffix : {".jsonl", ".ndjson", ".json"}) {
    if (path.ends_with(suffix)) return ReadJsonLines(path, take);
  }
  TextDocument document;
  ASSIGN_OR_RETURN(document.text, ReadFile(path));
  if (document.text.starts_with("\xEF\xBB\xBF")) document.text.erase(0, 3);
  const absl::Status valid = CheckUtf8(document.text);
  if (!valid.ok()) return Annotate(valid, path);
  return take(document, path);
}

}  // namespace tessera
