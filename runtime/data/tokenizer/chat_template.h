// Conversations as the text that a model was trained on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
};

struct ChatSegment {
  std::string text;
  // What the assistant says, with the token that ends it: what is trained on.
  bool from_assistant = false;
};

enum class ChatFormat {
  // "User: ...\n", "Assistant: ...\n": for models without a template.
  kPlain,
  // "<|im_start|>user\n...<|im_end|>\n"
  kChatMl,
  // "<|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>"
  kLlama3,
  // Llama 3 with a system message in any case, which begins with two dates;
  // "today" is the one that the template itself names, on any day.
  kLlama31,
  // ChatML, but answers to the last user, and those that bring a
  // "<think>...</think>", show what was thought; earlier ones lose it.
  kQwen3,
};

// The segments of a conversation one behind the other are what the model's own
// template gives. They hold all special tokens as text: encode them with
// EncodeOptions::add_special_tokens off.
class ChatTemplate {
 public:
  explicit ChatTemplate(ChatFormat format) : format_(format) {}

  // Recognises the Jinja text of a template. kUnimplemented, with what was
  // found in it, where it does something that this class does not.
  static absl::StatusOr<ChatTemplate> FromJinja(const std::string& jinja);
  // From the text of a tokenizer_config.json; without "chat_template": plain.
  static absl::StatusOr<ChatTemplate> FromTokenizerConfig(
      const std::string& json_text);
  // From `folder`/chat_template.jinja or tokenizer_config.json.
  static absl::StatusOr<ChatTemplate> Load(const std::string& folder);

  ChatFormat format() const { return format_; }
  // What a conversation without a system message begins with; may be empty.
  const std::string& default_system() const { return default_system_; }

  // `add_generation_prompt`: the beginning of an answer at the end.
  std::vector<ChatSegment> Render(const std::vector<ChatMessage>& messages,
                                  bool add_generation_prompt) const;

 private:
  // What the template shows of a message.
  std::string Shown(const std::vector<ChatMessage>& messages,
                    size_t index) const;
  void RenderMessage(const ChatMessage& message, const std::string& content,
                     std::vector<ChatSegment>& segments) const;

  ChatFormat format_;
  std::string bos_token_ = "<|begin_of_text|>";  // Of Llama 3.
  std::string default_system_;
  std::string today_;  // Of Llama 3.1.
};

// The segments' texts one behind the other.
std::string JoinSegments(const std::vector<ChatSegment>& segments);

}  // namespace tessera
