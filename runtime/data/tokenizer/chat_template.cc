#include "runtime/data/tokenizer/chat_template.h"

#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/json_node.h"
#include "runtime/data/tokenizer/normalizer.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

const std::string kImStart = "<|im_start|>";
const std::string kImEnd = "<|im_end|>";
const std::string kHeaderStart = "<|start_header_id|>";
const std::string kHeaderEnd = "<|end_header_id|>";
const std::string kEot = "<|eot_id|>";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Jinja's own way to write a new line in a string.
std::string UnescapeNewLines(std::string text) {
  for (size_t at = text.find("\\n"); at != std::string::npos;
       at = text.find("\\n", at + 1)) {
    text.replace(at, 2, "\n");
  }
  return text;
}

// The text of a system message that stands in the template itself.
std::string DefaultSystem(const std::string& jinja) {
  const std::string begin = kImStart + "system\n";
  for (size_t at = jinja.find(begin); at != std::string::npos;
       at = jinja.find(begin, at + 1)) {
    const size_t from = at + begin.size();
    const size_t to = jinja.find(kImEnd, from);
    if (to == std::string::npos) break;
    std::string text = jinja.substr(from, to - from);
    if (text.find_first_of("'{}") == std::string::npos) return text;
  }
  return "";
}

// What makes a text that is not the plain form of a format.
absl::Status CheckUnderstood(const std::string& jinja, ChatFormat format) {
  std::vector<std::string> foreign = {
      "<think>",           "reasoning_content", "strftime_now", "date_string",
      "Cutting Knowledge", "raise_exception('", "custom_tools", "eos_token"};
  if (format == ChatFormat::kChatMl) {
    foreign.insert(foreign.end(), {"trim", "strip()", "bos_token"});
  }
  for (const std::string& part : foreign) {
    if (Contains(jinja, part)) {
      return absl::UnimplementedError(
          "chat_template: not understood: it has \"" + part +
          "\"; understood are plain ChatML and Llama 3");
    }
  }
  return absl::OkStatus();
}

std::string Capitalised(std::string role) {
  if (!role.empty()) {
    role[0] =
        static_cast<char>(std::toupper(static_cast<unsigned char>(role[0])));
  }
  return role;
}

// What stands before a message, and behind it.
struct Frame {
  std::string before;
  std::string behind;
};

Frame FrameOf(ChatFormat format, const std::string& role) {
  switch (format) {
    case ChatFormat::kPlain:
      return {Capitalised(role) + ": ", "\n"};
    case ChatFormat::kChatMl:
      return {kImStart + role + "\n", kImEnd};
    case ChatFormat::kLlama3:
      return {kHeaderStart + role + kHeaderEnd + "\n\n", kEot};
  }
  return {};
}

// {"chat_template": text}, or a list of named ones.
std::string TemplateIn(const JsonNode& node) {
  for (const JsonNode& named : node.AsItems()) {
    if (named.Text("name") == "default") return named.Text("template");
  }
  node.Refuse("wanted one with the name \"default\"");
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::FromJinja(const std::string& jinja) {
  const std::string text = UnescapeNewLines(jinja);
  const bool is_chat_ml = Contains(text, kImStart) && Contains(text, kImEnd);
  const bool is_llama3 = Contains(text, kHeaderStart) &&
                         Contains(text, kHeaderEnd) && Contains(text, kEot);
  if (is_chat_ml == is_llama3) {
    return absl::UnimplementedError(
        "chat_template: not understood: it begins with \"" + Shortened(jinja) +
        "\"; understood are plain ChatML and Llama 3");
  }
  ChatTemplate result(is_chat_ml ? ChatFormat::kChatMl : ChatFormat::kLlama3);
  RETURN_IF_ERROR(CheckUnderstood(text, result.format_));
  if (is_chat_ml) result.default_system_ = DefaultSystem(text);
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromTokenizerConfig(
    const std::string& json_text) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  std::string jinja;
  std::string bos_token;
  const absl::Status status = Try([&] {
    const JsonNode root(json, "");
    if (root.Has("chat_template")) {
      jinja = json["chat_template"].is_string()
                  ? root.Text("chat_template")
                  : TemplateIn(root.At("chat_template"));
    }
    if (root.Has("bos_token")) {
      bos_token = json["bos_token"].is_string()
                      ? root.Text("bos_token")
                      : root.At("bos_token").Text("content");
    }
  });
  if (!status.ok()) return Annotate(status, "tokenizer_config.json");
  if (jinja.empty()) return ChatTemplate(ChatFormat::kPlain);
  ASSIGN_OR_RETURN(ChatTemplate result, FromJinja(jinja));
  if (!bos_token.empty()) result.bos_token_ = bos_token;
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& folder) {
  const std::string config = folder + "/tokenizer_config.json";
  std::string json_text = "{}";
  if (std::filesystem::exists(config)) {
    ASSIGN_OR_RETURN(json_text, ReadFile(config));
  }
  const std::string jinja = folder + "/chat_template.jinja";
  if (!std::filesystem::exists(jinja)) return FromTokenizerConfig(json_text);
  // A file of its own counts before the other.
  Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return FromTokenizerConfig(json_text);
  ASSIGN_OR_RETURN(json["chat_template"], ReadFile(jinja));
  return FromTokenizerConfig(
      json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void ChatTemplate::RenderMessage(const ChatMessage& message,
                                 std::vector<ChatSegment>& segments) const {
  static const NormalizerPointer trim = StripNormalizer(true, true);
  const Frame frame = FrameOf(format_, message.role);
  const std::string content = format_ == ChatFormat::kLlama3
                                  ? trim->Normalize(message.content)
                                  : message.content;
  const bool from_assistant = message.role == "assistant";
  if (format_ == ChatFormat::kPlain && from_assistant) {
    // As a model answers: behind a prompt that ends without a space.
    segments.push_back({frame.before.substr(0, frame.before.size() - 1)});
    segments.push_back({" " + content + frame.behind, true});
    return;
  }
  segments.push_back({frame.before, false});
  segments.push_back({content + frame.behind, from_assistant});
  if (format_ == ChatFormat::kChatMl) segments.push_back({"\n", false});
}

std::vector<ChatSegment> ChatTemplate::Render(
    const std::vector<ChatMessage>& messages,
    bool add_generation_prompt) const {
  std::vector<ChatSegment> segments;
  if (format_ == ChatFormat::kLlama3) segments.push_back({bos_token_, false});
  const bool has_system = !messages.empty() && messages[0].role == "system";
  if (!default_system_.empty() && !has_system && !messages.empty()) {
    RenderMessage({"system", default_system_}, segments);
  }
  for (const ChatMessage& message : messages) RenderMessage(message, segments);
  if (add_generation_prompt) {
    std::string prompt = FrameOf(format_, "assistant").before;
    // The answer brings its own space.
    if (format_ == ChatFormat::kPlain) prompt.pop_back();
    segments.push_back({prompt, false});
  }
  return segments;
}

std::string JoinSegments(const std::vector<ChatSegment>& segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

}  // namespace tessera
