// The tokenizer that belongs to a model's folder, for training and generation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer.h"
#include "runtime/data/tokenizer/bpe_tokenizer.h"
#include "runtime/data/tokenizer/stream_decoder.h"

namespace tessera {

// That of the folder's tokenizer.json; without one, bytes are the tokens of a
// model of 256 ids.
class ModelTokenizer {
 public:
  // Bytes.
  ModelTokenizer() : tokenizer_(std::make_shared<ByteTokenizer>()) {}
  // `vocab_size` is the model's: a tokenizer with more ids is an error, but for
  // tokens that were added to it and that no text holds: then it is the
  // encoding of a text that throws.
  static absl::StatusOr<ModelTokenizer> Open(const std::string& folder,
                                             int64_t vocab_size);

  // What the ids that the model lacks mean for texts.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // With the special tokens that a text begins with.
  std::vector<int32_t> EncodePrompt(const std::string& prompt) const;
  // Of a text that has its special tokens already, as chat templates give it.
  std::vector<int32_t> EncodeTemplate(const std::string& text) const {
    return tokenizer_->Encode(text);
  }

  // Text from ids as they come.
  class Stream {
   public:
    explicit Stream(const ModelTokenizer& tokenizer);
    std::string Push(int32_t id);
    std::string Finish();

   private:
    const Tokenizer& tokenizer_;
    std::optional<StreamDecoder> decoder_;
  };

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const BpeTokenizer> bpe_;  // The same, when it is one.
  int64_t vocab_size_ = 256;                 // Of the model.
  std::vector<std::string> warnings_;
};

}  // namespace tessera
