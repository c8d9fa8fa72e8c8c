// The ids of tokens that are one character.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/data/tokenizer/vocabulary.h"

namespace tessera {

// Two look-ups, without a hash; pages of 256 characters that have none are one
// page.
class CharacterTable {
 public:
  CharacterTable() : ids_(kPageSize, kNoToken) {}

  void Set(char32_t code, int32_t id) {
    uint16_t& page = pages_[code / kPageSize];
    if (page == 0) {
      page = static_cast<uint16_t>(ids_.size() / kPageSize);
      ids_.resize(ids_.size() + kPageSize, kNoToken);
    }
    ids_[page * kPageSize + code % kPageSize] = id;
  }

  // kNoToken if it is no token.
  int32_t Find(char32_t code) const {
    return ids_[pages_[code / kPageSize] * kPageSize + code % kPageSize];
  }

 private:
  static constexpr size_t kPageSize = 256;
  static constexpr size_t kNumPages = 0x110000 / kPageSize;
  std::array<uint16_t, kNumPages> pages_{};  // 0: the page without tokens.
  std::vector<int32_t> ids_;
};

}  // namespace tessera
