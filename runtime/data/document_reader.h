// Documents to train on, as files hold them: text, and JSON a line each.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/data/tokenizer/chat_template.h"

namespace tessera {

// Trained on from its first token to its last.
struct TextDocument {
  std::string text;
};

// Of which the completion alone is trained on.
struct CompletionDocument {
  std::string prompt;
  std::string completion;
};

// Of which the assistant's messages alone are trained on.
struct ChatDocument {
  std::vector<ChatMessage> messages;
};

using Document = std::variant<TextDocument, CompletionDocument, ChatDocument>;

// Nothing to train on: no text, no completion, no message.
bool IsEmpty(const Document& document);

// `place` is "FILE:LINE", or "FILE" where the file is one document.
using TakeDocument = std::function<absl::Status(const Document& document,
                                                const std::string& place)>;

// Calls `take` for each document of `path`, in order, until it fails. A file
// that ends in ".jsonl", ".ndjson" or ".json" has an object a line:
//   {"text": "..."}
//   {"prompt": "...", "completion": "..."}
//   {"messages": [{"role": "user", "content": "..."}, ...]}
// with other keys besides, which are ignored; the roles are system, user and
// assistant; lines of white space are passed over. Any other file is one
// document of text. Errors say where and what was wanted; what is not UTF-8 is
// one.
absl::Status ReadDocuments(const std::string& path, const TakeDocument& take);

// The document of one such line; errors do not say where.
absl::StatusOr<Document> ParseDocument(const std::string& line);

}  // namespace tessera
