// Byte-pair merging of one word.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/tokenizer/merge_table.h"

namespace tessera {

// Merges, again and again, the two neighbours of the lowest rank, the leftmost
// of equals, until no two neighbours merge. A short word is searched through at
// each step; a long one is kept in a heap, O(n log n).
class SymbolMerger {
 public:
  // At most 2^32 - 1 of them.
  void Merge(const MergeTable& merges, std::vector<int32_t>& symbols);

 private:
  struct Neighbours {
    uint32_t previous;
    uint32_t next;
  };
  void MergeShort(const MergeTable& merges, std::vector<int32_t>& symbols);
  void MergeLong(const MergeTable& merges, std::vector<int32_t>& symbols);
  // Looks up what the symbol at `i` and the next one become, and queues it.
  void Look(const MergeTable& merges, const std::vector<int32_t>& symbols,
            uint32_t i);
  // Merges the symbol at `i` with the next one.
  void Join(const MergeTable& merges, std::vector<int32_t>& symbols,
            uint32_t i);

  // Of each symbol and the one behind it; kNone where they do not merge.
  std::vector<uint32_t> ranks_;
  std::vector<int32_t> results_;
  std::vector<Neighbours> links_;
  std::vector<uint64_t> heap_;  // Rank and position.
};

}  // namespace tessera
