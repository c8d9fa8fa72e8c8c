// What words became, so that a word is merged once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Bounded: when it is full, it forgets everything. For one thread.
class WordCache {
 public:
  static constexpr size_t kMaxWords = size_t{1} << 16;
  static constexpr size_t kMaxWordBytes = 64;

  WordCache();

  // The ids of `word`, valid until the next Insert; none if it is not known.
  std::optional<std::span<const int32_t>> Find(std::string_view word) const;
  // `word` must not be known, nor longer than kMaxWordBytes.
  void Insert(std::string_view word, std::span<const int32_t> ids);

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t text_offset = 0;
    uint32_t ids_offset = 0;
    uint16_t num_bytes = 0;
    uint16_t num_ids = 0;
    bool used = false;
  };
  size_t SlotOf(std::string_view word, uint64_t hash) const;

  std::vector<Slot> slots_;
  std::string texts_;
  std::vector<int32_t> ids_;
  size_t size_ = 0;
};

}  // namespace tessera
