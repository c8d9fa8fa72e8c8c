#include "runtime/data/tokenizer/chat_template.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"
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

bool IsLlama(ChatFormat format) {
  return format == ChatFormat::kLlama3 || format == ChatFormat::kLlama31;
}

bool IsChatMl(ChatFormat format) {
  return format == ChatFormat::kChatMl || format == ChatFormat::kQwen3;
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

constexpr const char* kUnderstood =
    "; understood are ChatML, Qwen 3, Llama 3 and 3.1";

// What makes a text that is not the known form of a format.
absl::Status CheckUnderstood(const std::string& jinja, ChatFormat format) {
  std::vector<std::string> foreign = {"raise_exception('", "eos_token",
                                      "render_content", "reasoning_mode"};
  if (format != ChatFormat::kLlama31) {
    foreign.insert(foreign.end(), {"strftime_now", "date_string",
                                   "Cutting Knowledge", "custom_tools"});
  }
  if (format != ChatFormat::kQwen3) {
    foreign.insert(foreign.end(), {"<think>", "reasoning_content"});
  }
  if (IsChatMl(format)) {
    foreign.insert(foreign.end(), {"trim", "strip()", "bos_token"});
  }
  for (const std::string& part : foreign) {
    if (Contains(jinja, part)) {
      return absl::UnimplementedError(
          "chat_template: not understood: it has \"" + part + "\"" +
          kUnderstood);
    }
  }
  return absl::OkStatus();
}

// The format by what only it has.
ChatFormat FormatOf(const std::string& jinja, bool is_chat_ml) {
  if (is_chat_ml) {
    const bool thinks = Contains(jinja, "last_query_index") &&
                        Contains(jinja, "enable_thinking") &&
                        Contains(jinja, "</think>");
    return thinks ? ChatFormat::kQwen3 : ChatFormat::kChatMl;
  }
  const bool has_dates =
      Contains(jinja, "Cutting Knowledge Date: December 2023\n") &&
      Contains(jinja, "\"Today Date: \" + date_string");
  return has_dates ? ChatFormat::kLlama31 : ChatFormat::kLlama3;
}

// The date that stands in a template of Llama 3.1 for want of a clock.
absl::StatusOr<std::string> DateIn(const std::string& jinja) {
  const std::string set = "set date_string = \"";
  const size_t at = jinja.rfind(set);
  const size_t from = at + set.size();
  if (at != std::string::npos && jinja.find('"', from) != std::string::npos) {
    return jinja.substr(from, jinja.find('"', from) - from);
  }
  return absl::UnimplementedError(
      absl::StrCat("chat_template: not understood: it sets no date_string",
                   std::string(kUnderstood)));
}

std::string WithoutLines(const std::string& text) {
  const size_t begin = text.find_first_not_of('\n');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of('\n') + 1 - begin);
}

// Messages up to this one are history; those after it answer.
size_t LastQuestion(const std::vector<ChatMessage>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& text = messages[i].content;
    const bool of_tool = text.starts_with("<tool_response>") &&
                         text.ends_with("</tool_response>");
    if (messages[i].role == "user" && !of_tool) return i;
  }
  return messages.empty() ? 0 : messages.size() - 1;
}

// What a template of Qwen 3 shows of an answer.
std::string QwenAnswer(const std::string& content, bool is_history,
                       bool is_last) {
  const std::string begin = "<think>", end = "</think>";
  std::string thought;
  std::string answer = content;
  if (Contains(content, end)) {
    thought = content.substr(0, content.find(end));
    if (const size_t at = thought.rfind(begin); at != std::string::npos) {
      thought.erase(0, at + begin.size());
    }
    thought = WithoutLines(thought);
    answer = content.substr(content.rfind(end) + end.size());
    answer.erase(0, std::min(answer.find_first_not_of('\n'), answer.size()));
  }
  if (is_history || (!is_last && thought.empty())) return answer;
  answer.erase(0, std::min(answer.find_first_not_of('\n'), answer.size()));
  return begin + "\n" + thought + "\n" + end + "\n\n" + answer;
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
    case ChatFormat::kQwen3:
      return {kImStart + role + "\n", kImEnd};
    case ChatFormat::kLlama3:
    case ChatFormat::kLlama31:
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
        "\"" + kUnderstood);
  }
  ChatTemplate result(FormatOf(text, is_chat_ml));
  RETURN_IF_ERROR(CheckUnderstood(text, result.format_));
  if (result.format_ == ChatFormat::kChatMl) {
    result.default_system_ = DefaultSystem(text);
  } else if (result.format_ == ChatFormat::kLlama31) {
    ASSIGN_OR_RETURN(result.today_, DateIn(text));
  }
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromTokenizerConfig(
    const std::string& json_text) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(json_text);
  if (!parsed.ok()) return Annotate(parsed.status(), "tokenizer_config.json");
  const Json& json = *parsed;
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
  std::error_code ignored;  // Reading says what is wrong.
  const std::string config = folder + "/tokenizer_config.json";
  std::string json_text = "{}";
  if (std::filesystem::exists(config, ignored)) {
    ASSIGN_OR_RETURN(json_text, ReadFile(config));
  }
  const std::string jinja = folder + "/chat_template.jinja";
  if (!std::filesystem::exists(jinja, ignored)) {
    return FromTokenizerConfig(json_text);
  }
  // A file of its own counts before the other.
  absl::StatusOr<Json> json = ParseJsonObject(json_text);
  if (!json.ok()) return Annotate(json.status(), config);
  ASSIGN_OR_RETURN((*json)["chat_template"], ReadFile(jinja));
  return FromTokenizerConfig(
      json->dump(-1, ' ', false, Json::error_handler_t::replace));
}

void ChatTemplate::RenderMessage(const ChatMessage& message,
                                 const std::string& content,
                                 std::vector<ChatSegment>& segments) const {
  const Frame frame = FrameOf(format_, message.role);
  const bool from_assistant = message.role == "assistant";
  if (format_ == ChatFormat::kPlain && from_assistant) {
    // As a model answers: behind a prompt that ends without a space.
    segments.push_back({frame.before.substr(0, frame.before.size() - 1)});
    segments.push_back({" " + content + frame.behind, true});
    return;
  }
  segments.push_back({frame.before, false});
  segments.push_back({content + frame.behind, from_assistant});
  if (IsChatMl(format_)) segments.push_back({"\n", false});
}

std::string ChatTemplate::Shown(const std::vector<ChatMessage>& messages,
                                size_t index) const {
  static const NormalizerPointer trim = StripNormalizer(true, true);
  const ChatMessage& message = messages[index];
  if (IsLlama(format_)) return trim->Normalize(message.content);
  if (format_ == ChatFormat::kQwen3 && message.role == "assistant") {
    return QwenAnswer(message.content, index <= LastQuestion(messages),
                      index + 1 == messages.size());
  }
  return message.content;
}

std::vector<ChatSegment> ChatTemplate::Render(
    const std::vector<ChatMessage>& messages,
    bool add_generation_prompt) const {
  std::vector<ChatSegment> segments;
  if (IsLlama(format_)) segments.push_back({bos_token_, false});
  const bool has_system = !messages.empty() && messages[0].role == "system";
  size_t first = 0;
  if (format_ == ChatFormat::kLlama31) {
    first = has_system ? 1 : 0;
    const std::string dates =
        "Cutting Knowledge Date: December 2023\nToday Date: " + today_ + "\n\n";
    RenderMessage({"system", ""},
                  dates + (has_system ? Shown(messages, 0) : ""), segments);
  } else if (!default_system_.empty() && !has_system && !messages.empty()) {
    RenderMessage({"system", ""}, default_system_, segments);
  }
  for (size_t i = first; i < messages.size(); ++i) {
    RenderMessage(messages[i], Shown(messages, i), segments);
  }
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
