// A tokenizer of byte pairs, from text to ids and back.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer.h"
#include "runtime/data/tokenizer/added_tokens.h"
#include "runtime/data/tokenizer/bpe_model.h"
#include "runtime/data/tokenizer/decoder.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/post_processor.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"

namespace tessera {

// In the order in which a text passes through them.
struct BpeTokenizerParts {
  std::string name;
  std::vector<AddedToken> added_tokens;
  NormalizerPointer normalizer;       // May be null.
  PreTokenizerPointer pre_tokenizer;  // May be null: one piece.
  std::optional<BpeModel> model;
  PostProcessor post_processor;
  DecoderPointer decoder;  // Null: tokens with spaces between.
};

struct EncodeOptions {
  // Those that the post-processor puts around every text.
  bool add_special_tokens = true;
  // Special tokens that stand in the text are text: for text of others.
  bool special_tokens_as_text = false;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// May be used from several threads at once.
class BpeTokenizer final : public Tokenizer {
 public:
  // `parts.model` must be there.
  explicit BpeTokenizer(BpeTokenizerParts parts);
  ~BpeTokenizer() override;

  std::string name() const override { return parts_.name; }
  // One more than the largest id.
  int64_t vocab_size() const override;
  // The same without added tokens.
  int64_t num_model_ids() const {
    return parts_.model->vocabulary().max_id() + 1;
  }

  // What is not UTF-8 counts as U+FFFD. Throws tessera::Error where a pattern
  // reaches its limits.
  std::vector<int32_t> Encode(std::string_view text,
                              const EncodeOptions& options) const;
  // Without special tokens around it.
  std::vector<int32_t> Encode(std::string_view text) const override {
    return Encode(text, {.add_special_tokens = false});
  }

  // Ids outside the vocabulary give nothing.
  std::string Decode(std::span<const int32_t> ids,
                     const DecodeOptions& options) const;
  std::string Decode(std::span<const int32_t> ids) const override {
    return Decode(ids, {});
  }

  // kNoToken if it is none.
  int32_t IdOf(const std::string& token) const;
  // As the decoder takes it: bytes are not yet text, and an added token that is
  // looked for in normalized text is normalized.
  std::optional<std::string> TokenOf(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  bool IsAdded(int32_t id) const { return added_tokens_.Find(id) != nullptr; }
  const std::vector<AddedToken>& added_tokens() const;

 private:
  // The text between two added tokens that are looked for before normalizing.
  struct Gap {
    std::string_view text;
    bool at_start = false;
  };
  void EncodeGap(const Gap& gap, const EncodeOptions& options,
                 BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void EncodePieces(std::string_view text, bool at_start, BpeScratch& scratch,
                    std::vector<int32_t>& ids) const;
  std::unique_ptr<BpeScratch> BorrowScratch() const;
  void ReturnScratch(std::unique_ptr<BpeScratch> scratch) const;

  BpeTokenizerParts parts_;
  AddedTokens added_tokens_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> idle_;
};

}  // namespace tessera
