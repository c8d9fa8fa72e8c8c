#include "runtime/data/tokenizer/merge_table.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr size_t kFirstNumSlots = 64;

}  // namespace

bool MergeTable::Add(const Merge& merge) {
  if ((size_ + 1) * 2 > slots_.size()) Grow();
  Merge& slot = slots_[SlotOf(merge.left, merge.right)];
  const bool is_new = slot.left < 0;
  slot = merge;
  if (is_new) ++size_;
  return is_new;
}

void MergeTable::Grow() {
  std::vector<Merge> old = std::exchange(
      slots_, std::vector<Merge>(std::max(kFirstNumSlots, slots_.size() * 2)));
  for (const Merge& merge : old) {
    if (merge.left >= 0) slots_[SlotOf(merge.left, merge.right)] = merge;
  }
}

}  // namespace tessera
