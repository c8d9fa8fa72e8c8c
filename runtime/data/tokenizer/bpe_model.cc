#include "runtime/data/tokenizer/bpe_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

constexpr size_t kCrossingBits = size_t{1} << 20;
// A piece of characters that is longer is cut where no merge crosses.
constexpr size_t kMaxWholeBytes = 24;

size_t CrossingBit(char32_t left, char32_t right) {
  const uint64_t key = (uint64_t{left} << 32) | right;
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 44);
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(BpeOptions options,
                                          Vocabulary vocabulary,
                                          MergeTable merges) {
  BpeModel model(std::move(options), std::move(vocabulary), std::move(merges));
  if (!model.options_.unk_token.empty() && model.unk_id_ == kNoToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("unk_token \"", model.options_.unk_token,
                     "\" is not in the vocabulary"));
  }
  return model;
}

BpeModel::BpeModel(BpeOptions options, Vocabulary vocabulary, MergeTable merges)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      crossings_(kCrossingBits / 64) {
  if (!options_.unk_token.empty()) {
    unk_id_ = vocabulary_.Find(options_.unk_token);
  }
  FillTables();
  FillCrossings();
}

void BpeModel::FillTables() {
  vocabulary_.ForEach([&](std::string_view token, int32_t id) {
    if (token.empty()) return;
    const Utf8Character c = DecodeUtf8(token, 0);
    if (c.num_bytes == token.size()) characters_.Set(c.code, id);
  });
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = CharacterOfByte(static_cast<uint8_t>(byte));
    byte_level_ids_[byte] = characters_.Find(code);
    fallback_ids_[byte] =
        options_.byte_fallback
            ? vocabulary_.Find(absl::StrFormat("<0x%02X>", byte))
            : kNoToken;
  }
}

// See [Note: where no merge crosses].
void BpeModel::FillCrossings() {
  merges_.ForEach([&](const Merge& merge) {
    const std::string_view left = *vocabulary_.TextOf(merge.left);
    const std::string_view right = *vocabulary_.TextOf(merge.right);
    if (left.empty() || right.empty()) return;
    const size_t bit = CrossingBit(DecodeUtf8Before(left, left.size()).code,
                                   DecodeUtf8(right, 0).code);
    crossings_[bit / 64] |= uint64_t{1} << (bit % 64);
  });
}

bool BpeModel::MayCross(char32_t left, char32_t right) const {
  // A character that is no token may become others, which may merge, or a part
  // of a fused unk, or nothing.
  if (characters_.Find(left) == kNoToken) return true;
  if (characters_.Find(right) == kNoToken) return true;
  const size_t bit = CrossingBit(left, right);
  return ((crossings_[bit / 64] >> (bit % 64)) & 1) != 0;
}

int BpeModel::FirstMissingByte() const {
  const auto* const found =
      std::find(byte_level_ids_.begin(), byte_level_ids_.end(), kNoToken);
  return found == byte_level_ids_.end()
             ? -1
             : static_cast<int>(found - byte_level_ids_.begin());
}

void BpeModel::Encode(std::string_view piece, BpeScratch& scratch,
                      std::vector<int32_t>& ids) const {
  if (options_.byte_level || options_.ignore_merges ||
      piece.size() <= kMaxWholeBytes) {
    EncodeWord(piece, scratch, ids);
    return;
  }
  // See [Note: where no merge crosses].
  size_t begin = 0;
  char32_t previous = 0;
  for (size_t i = 0; i < piece.size();) {
    const Utf8Character c = DecodeUtf8(piece, i);
    if (i > 0 && !MayCross(previous, c.code)) {
      EncodeWord(piece.substr(begin, i - begin), scratch, ids);
      begin = i;
    }
    previous = c.code;
    i += c.num_bytes;
  }
  EncodeWord(piece.substr(begin), scratch, ids);
}

int32_t BpeModel::WholeToken(std::string_view piece,
                             BpeScratch& scratch) const {
  if (!options_.ignore_merges) return kNoToken;
  if (!options_.byte_level) return vocabulary_.Find(piece);
  scratch.characters.clear();
  AppendBytesAsCharacters(piece, scratch.characters);
  return vocabulary_.Find(scratch.characters);
}

void BpeModel::EncodeWord(std::string_view word, BpeScratch& scratch,
                          std::vector<int32_t>& ids) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  if (cached) {
    if (const auto known = scratch.cache.Find(word)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
  }
  const int32_t whole = WholeToken(word, scratch);
  if (whole == kNoToken) {
    MergeWord(word, scratch);
  } else {
    scratch.symbols.assign(1, whole);
  }
  if (cached) scratch.cache.Insert(word, scratch.symbols);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void BpeModel::MergeWord(std::string_view word, BpeScratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  symbols.clear();
  if (options_.byte_level) {
    for (const char c : word) {
      const int32_t id = byte_level_ids_[static_cast<uint8_t>(c)];
      if (id != kNoToken) symbols.push_back(id);
    }
  } else {
    InitialSymbols(word, symbols);
  }
  scratch.merger.Merge(merges_, symbols);
}

bool BpeModel::AppendByteTokens(std::string_view character,
                                std::vector<int32_t>& symbols) const {
  if (!options_.byte_fallback) return false;
  const auto id_of = [&](char c) {
    return fallback_ids_[static_cast<uint8_t>(c)];
  };
  for (const char c : character) {
    if (id_of(c) == kNoToken) return false;
  }
  for (const char c : character) symbols.push_back(id_of(c));
  return true;
}

// An unk waits for the next known character or unk, as others then do: byte
// tokens in between come before it.
void BpeModel::InitialSymbols(std::string_view word,
                              std::vector<int32_t>& symbols) const {
  bool unk_waits = false;
  for (size_t i = 0; i < word.size();) {
    const Utf8Character c = DecodeUtf8(word, i);
    const std::string_view character = word.substr(i, c.num_bytes);
    i += c.num_bytes;
    const int32_t id = characters_.Find(c.code);
    if (id != kNoToken) {
      if (std::exchange(unk_waits, false)) symbols.push_back(unk_id_);
      symbols.push_back(id);
    } else if (!AppendByteTokens(character, symbols) && unk_id_ != kNoToken) {
      if (unk_waits && !options_.fuse_unk) symbols.push_back(unk_id_);
      unk_waits = true;
    }
  }
  if (unk_waits) symbols.push_back(unk_id_);
}

}  // namespace tessera
