#include "runtime/data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "runtime/data/utf8.h"

namespace tessera {

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : parts_(std::move(parts)),
      added_tokens_(std::move(parts_.added_tokens), parts_.normalizer.get()) {
  TESSERA_CHECK(parts_.model.has_value());
}

BpeTokenizer::~BpeTokenizer() = default;

int64_t BpeTokenizer::vocab_size() const {
  int64_t max_id = num_model_ids() - 1;
  for (const AddedToken& token : added_tokens()) {
    max_id = std::max<int64_t>(max_id, token.id);
  }
  return max_id + 1;
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text,
                                          const EncodeOptions& options) const {
  std::string repaired;
  if (!IsUtf8(text)) {
    repaired = RepairUtf8(text);
    text = repaired;
  }
  std::unique_ptr<BpeScratch> scratch = BorrowScratch();
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  for (const TokenOrText& part :
       added_tokens_.Split(text, false, !options.special_tokens_as_text)) {
    if (part.id != kNoToken) {
      ids.push_back(part.id);
      continue;
    }
    const Gap gap{text.substr(part.begin, part.end - part.begin),
                  part.begin == 0};
    EncodeGap(gap, options, *scratch, ids);
  }
  ReturnScratch(std::move(scratch));
  if (!options.add_special_tokens) return ids;
  return parts_.post_processor.Apply(std::move(ids));
}

void BpeTokenizer::EncodeGap(const Gap& gap, const EncodeOptions& options,
                             BpeScratch& scratch,
                             std::vector<int32_t>& ids) const {
  std::string normalized;
  std::string_view text = gap.text;
  if (parts_.normalizer != nullptr) {
    normalized = parts_.normalizer->Normalize(std::string(text));
    text = normalized;
  }
  for (const TokenOrText& part :
       added_tokens_.Split(text, true, !options.special_tokens_as_text)) {
    if (part.id != kNoToken) {
      ids.push_back(part.id);
    } else {
      EncodePieces(text.substr(part.begin, part.end - part.begin),
                   gap.at_start && part.begin == 0, scratch, ids);
    }
  }
}

void BpeTokenizer::EncodePieces(std::string_view text, bool at_start,
                                BpeScratch& scratch,
                                std::vector<int32_t>& ids) const {
  Pieces pieces(text, at_start);
  if (parts_.pre_tokenizer != nullptr) parts_.pre_tokenizer->Apply(pieces);
  for (const Piece& piece : pieces.pieces) {
    parts_.model->Encode(pieces.TextOf(piece), scratch, ids);
  }
}

std::string BpeTokenizer::Decode(std::span<const int32_t> ids,
                                 const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (options.skip_special_tokens && IsSpecial(id)) continue;
    if (std::optional<std::string> token = TokenOf(id)) {
      tokens.push_back(*std::move(token));
    }
  }
  std::string text;
  if (parts_.decoder != nullptr) {
    parts_.decoder->Decode(tokens);
    for (const std::string& token : tokens) text += token;
    return text;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

int32_t BpeTokenizer::IdOf(const std::string& token) const {
  const AddedToken* added = added_tokens_.Find(token);
  return added != nullptr ? added->id : parts_.model->vocabulary().Find(token);
}

std::optional<std::string> BpeTokenizer::TokenOf(int32_t id) const {
  if (const std::string* text = added_tokens_.TextOf(id)) return *text;
  const auto text = parts_.model->vocabulary().TextOf(id);
  if (!text) return std::nullopt;
  return std::string(*text);
}

bool BpeTokenizer::IsSpecial(int32_t id) const {
  const AddedToken* added = added_tokens_.Find(id);
  return added != nullptr && added->special;
}

const std::vector<AddedToken>& BpeTokenizer::added_tokens() const {
  return added_tokens_.tokens();
}

std::unique_ptr<BpeScratch> BpeTokenizer::BorrowScratch() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) return std::make_unique<BpeScratch>();
  std::unique_ptr<BpeScratch> scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void BpeTokenizer::ReturnScratch(std::unique_ptr<BpeScratch> scratch) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(scratch));
}

}  // namespace tessera
