// Tokens that are found in the text itself, before and apart from merging.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/vocabulary.h"

namespace tessera {

struct AddedToken {
  int32_t id = kNoToken;
  std::string content;
  bool single_word = false;  // Not as a part of a word.
  bool lstrip = false;       // Takes the white space before it.
  bool rstrip = false;       // Takes the white space behind it.
  bool normalized = false;   // Looked for, normalized, in normalized text.
  bool special = false;      // Not text: decoding may leave it out.
};

// A part of a text: an added token, or (kNoToken) what lies between them.
struct TokenOrText {
  int32_t id = kNoToken;
  size_t begin = 0;
  size_t end = 0;
};

// Finds the longest of many strings at each place. Immutable.
class StringMatcher {
 public:
  // The first of equal strings counts; empty ones never match.
  explicit StringMatcher(const std::vector<std::string>& strings);

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    size_t string = 0;  // Its index.
  };
  // The first match at or after `start`.
  std::optional<Match> Find(std::string_view text, size_t start) const;

 private:
  static constexpr uint32_t kNoString = UINT32_MAX;
  std::optional<Match> MatchAt(std::string_view text, size_t begin) const;
  uint32_t Child(uint32_t node, char byte) const;

  std::array<bool, 256> begins_{};  // Whether any string begins with a byte.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<uint32_t> string_at_node_;
};

// All added tokens of a tokenizer. Immutable.
class AddedTokens {
 public:
  // `normalizer` may be null.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  // Cuts `text` at the tokens that are looked for before normalizing, or
  // (`normalized`) after it. `with_special`: at special tokens too.
  std::vector<TokenOrText> Split(std::string_view text, bool normalized,
                                 bool with_special) const;

  // Null if it is none.
  const AddedToken* Find(int32_t id) const;
  const AddedToken* Find(const std::string& content) const;
  // As decoders take it: the content, normalized if the token is. Null if it is
  // none.
  const std::string* TextOf(int32_t id) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  struct Group {
    std::vector<const AddedToken*> tokens;
    StringMatcher matcher;
  };
  Group MakeGroup(bool normalized) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> texts_;  // Of each token.
  absl::flat_hash_map<int32_t, size_t> by_id_;
  absl::flat_hash_map<std::string, size_t> by_content_;
  Group plain_;
  Group normalized_;
};

}  // namespace tessera
