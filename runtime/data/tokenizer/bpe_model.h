// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/character_table.h"
#include "runtime/data/tokenizer/merge_symbols.h"
#include "runtime/data/tokenizer/merge_table.h"
#include "runtime/data/tokenizer/vocabulary.h"
#include "runtime/data/tokenizer/word_cache.h"

namespace tessera {

struct BpeOptions {
  // What a character becomes that is no token; none: it vanishes.
  std::string unk_token = {};
  // Neighbouring unknown characters become one unk.
  bool fuse_unk = false;
  // A character that is no token becomes its bytes, "<0x00>" to "<0xFF>", if
  // all of these are tokens.
  bool byte_fallback = false;
  // A piece that is a token is left so, whatever the merges make of it.
  bool ignore_merges = false;
  // The symbols to begin with are a piece's bytes, as byte_alphabet.h writes
  // them, and not its characters.
  bool byte_level = false;
};

// What one thread encodes with.
struct BpeScratch {
  WordCache cache;
  SymbolMerger merger;
  std::vector<int32_t> symbols;
  std::string characters;
};

// Immutable; may be used from several threads at once, each with its scratch.
class BpeModel {
 public:
  // Errors: unk_token is no token.
  static absl::StatusOr<BpeModel> Create(BpeOptions options,
                                         Vocabulary vocabulary,
                                         MergeTable merges);

  // Appends the ids of `piece`, valid UTF-8.
  void Encode(std::string_view piece, BpeScratch& scratch,
              std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  size_t num_merges() const { return merges_.size(); }
  // Whether the byte's character is a token. If not, the byte gives nothing.
  bool HasByte(uint8_t byte) const { return byte_level_ids_[byte] != kNoToken; }
  // The first byte whose character is no token; -1 if all are.
  int FirstMissingByte() const;

 private:
  BpeModel(BpeOptions options, Vocabulary vocabulary, MergeTable merges);
  void FillTables();
  void FillCrossings();

  // [Note: where no merge crosses]
  // A merge joins the last character of its left token with the first of its
  // right one. Where two neighbouring characters are such a pair in no merge,
  // no token can cross, and a long piece may be cut there: the parts are short,
  // they repeat, and the cache knows them. A set bit may also come from another
  // pair with the same hash, which only cuts less.
  bool MayCross(char32_t left, char32_t right) const;

  // A piece, or a part of one, by the cache.
  void EncodeWord(std::string_view word, BpeScratch& scratch,
                  std::vector<int32_t>& ids) const;
  // Without the cache, into scratch.symbols.
  void MergeWord(std::string_view word, BpeScratch& scratch) const;
  void InitialSymbols(std::string_view word,
                      std::vector<int32_t>& symbols) const;
  bool AppendByteTokens(std::string_view character,
                        std::vector<int32_t>& symbols) const;
  // The id of a piece that stays whole, or kNoToken.
  int32_t WholeToken(std::string_view piece, BpeScratch& scratch) const;

  BpeOptions options_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  int32_t unk_id_ = kNoToken;
  CharacterTable characters_;
  std::array<int32_t, 256> byte_level_ids_;  // By byte.
  std::array<int32_t, 256> fallback_ids_;    // By byte.
  std::vector<uint64_t> crossings_;          // Bits.
};

}  // namespace tessera
