// Which two tokens become which third, and before which others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

// A lower rank merges first.
struct Merge {
  int32_t left = -1;
  int32_t right = -1;
  uint32_t rank = 0;
  int32_t result = -1;
};

class MergeTable {
 public:
  // The last one of a pair counts. Whether the pair is new.
  bool Add(const Merge& merge);

  // Null if the two do not merge.
  const Merge* Find(int32_t left, int32_t right) const {
    if (slots_.empty()) return nullptr;
    const Merge& slot = slots_[SlotOf(left, right)];
    return slot.left < 0 ? nullptr : &slot;
  }

  size_t size() const { return size_; }

  template <typename F>
  void ForEach(F f) const {
    for (const Merge& slot : slots_) {
      if (slot.left >= 0) f(slot);
    }
  }

 private:
  // The slot with the pair, or the empty one where it belongs.
  size_t SlotOf(int32_t left, int32_t right) const {
    const uint64_t key = (uint64_t{static_cast<uint32_t>(left)} << 32) |
                         static_cast<uint32_t>(right);
    const size_t mask = slots_.size() - 1;
    size_t i = ((key * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (slots_[i].left >= 0 &&
           (slots_[i].left != left || slots_[i].right != right)) {
      i = (i + 1) & mask;
    }
    return i;
  }
  void Grow();

  std::vector<Merge> slots_;  // A power of two of them.
  size_t size_ = 0;
};

}  // namespace tessera
