// Documents as tokens, of which some are trained on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/document_reader.h"
#include "runtime/data/tokenizer.h"
#include "runtime/data/tokenizer/chat_template.h"

namespace tessera {

// Documents one behind the other. A token that does not count in the loss is
// kept as ~id, which is below 0.
class DocumentTokens {
 public:
  void Append(std::span<const int32_t> tokens);

  int64_t num_documents() const {
    return static_cast<int64_t>(ends_.size()) - 1;
  }
  int64_t num_tokens() const { return ends_.back(); }
  int64_t begin(int64_t document) const { return ends_[document]; }
  int64_t end(int64_t document) const { return ends_[document + 1]; }
  std::span<const int32_t> tokens() const { return tokens_; }
  // Two sets with the same one hold the same documents.
  uint64_t fingerprint() const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_ = {0};
};

struct DocumentEncoding {
  EncodeText encode;        // Without special tokens around it.
  EncodeText encode_start;  // With those that a text begins with.
  // An error where the model's template is not understood; it is returned by
  // the first conversation.
  absl::StatusOr<ChatTemplate> chat = ChatTemplate(ChatFormat::kPlain);
  // Ends texts, completions and plain conversations.
  std::optional<int32_t> end_token = {};
  // Ids of token files are below it; 0: any.
  int64_t vocab_size = 0;
};

// The tokens of a document, ~id where one does not count. What the assistant
// says is encoded by itself, as a model makes it: behind the tokens of the text
// before it.
absl::StatusOr<std::vector<int32_t>> EncodeDocument(
    const Document& document, const DocumentEncoding& encoding);

// Documents that were left out of a set.
struct SkippedDocuments {
  int64_t empty = 0;
  int64_t without_loss = 0;  // No token that counts has one before it.
};

struct DocumentSet {
  DocumentTokens tokens;
  SkippedDocuments skipped;
};

// All documents of the files, in order; errors say where. A file that ends in
// ".bin" holds tokens of llm.c: each document from its start token on, all of
// it counted. Of the others see ReadDocuments.
absl::StatusOr<DocumentSet> LoadDocuments(const std::vector<std::string>& paths,
                                          const DocumentEncoding& encoding);

}  // namespace tessera
