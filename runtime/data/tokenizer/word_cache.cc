#include "runtime/data/tokenizer/word_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "kernels/status.h"

namespace tessera {

WordCache::WordCache() : slots_(2 * kMaxWords) {}

std::optional<std::span<const int32_t>> WordCache::Find(
    std::string_view word) const {
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  const Slot& slot = slots_[SlotOf(word, hash)];
  if (!slot.used) return std::nullopt;
  return std::span(ids_).subspan(slot.ids_offset, slot.num_ids);
}

void WordCache::Insert(std::string_view word, std::span<const int32_t> ids) {
  TESSERA_CHECK(word.size() <= kMaxWordBytes);
  if (size_ == kMaxWords) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    texts_.clear();
    ids_.clear();
    size_ = 0;
  }
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  slots_[SlotOf(word, hash)] = {
      .hash = hash,
      .text_offset = static_cast<uint32_t>(texts_.size()),
      .ids_offset = static_cast<uint32_t>(ids_.size()),
      .num_bytes = static_cast<uint16_t>(word.size()),
      .num_ids = static_cast<uint16_t>(ids.size()),
      .used = true};
  texts_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++size_;
}

size_t WordCache::SlotOf(std::string_view word, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].used) {
    const Slot& slot = slots_[i];
    if (slot.hash == hash && slot.num_bytes == word.size() &&
        word.compare({texts_.data() + slot.text_offset, slot.num_bytes}) == 0) {
      break;
    }
    i = (i + 1) & mask;
  }
  return i;
}

}  // namespace tessera
