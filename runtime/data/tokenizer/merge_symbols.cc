#include "runtime/data/tokenizer/merge_symbols.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/status.h"

namespace tessera {
namespace {

constexpr size_t kMaxShort = 40;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr int32_t kGone = -1;

}  // namespace

void SymbolMerger::Merge(const MergeTable& merges,
                         std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  TESSERA_CHECK(symbols.size() < kNone);
  ranks_.resize(symbols.size());
  results_.resize(symbols.size());
  if (symbols.size() <= kMaxShort) {
    MergeShort(merges, symbols);
  } else {
    MergeLong(merges, symbols);
  }
}

void SymbolMerger::MergeShort(const MergeTable& merges,
                              std::vector<int32_t>& symbols) {
  size_t n = symbols.size();
  const auto look = [&](size_t i) {
    const tessera::Merge* merge =
        i + 1 < n ? merges.Find(symbols[i], symbols[i + 1]) : nullptr;
    ranks_[i] = merge == nullptr ? kNone : merge->rank;
    results_[i] = merge == nullptr ? kGone : merge->result;
  };
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    const auto end = ranks_.begin() + static_cast<ptrdiff_t>(n);
    const auto i = static_cast<size_t>(std::min_element(ranks_.begin(), end) -
                                       ranks_.begin());
    if (ranks_[i] == kNone) break;
    symbols[i] = results_[i];
    for (size_t j = i + 1; j + 1 < n; ++j) {
      symbols[j] = symbols[j + 1];
      ranks_[j] = ranks_[j + 1];
      results_[j] = results_[j + 1];
    }
    --n;
    look(i);
    if (i > 0) look(i - 1);
  }
  symbols.resize(n);
}

void SymbolMerger::MergeLong(const MergeTable& merges,
                             std::vector<int32_t>& symbols) {
  const auto n = static_cast<uint32_t>(symbols.size());
  links_.resize(n);
  heap_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    links_[i] = {i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  }
  for (uint32_t i = 0; i < n; ++i) Look(merges, symbols, i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const auto i = static_cast<uint32_t>(top);
    // Otherwise one of the two has merged since with another.
    if (ranks_[i] == top >> 32) Join(merges, symbols, i);
  }
  std::erase(symbols, kGone);
}

void SymbolMerger::Look(const MergeTable& merges,
                        const std::vector<int32_t>& symbols, uint32_t i) {
  const uint32_t next = links_[i].next;
  const tessera::Merge* merge =
      next == kNone ? nullptr : merges.Find(symbols[i], symbols[next]);
  ranks_[i] = merge == nullptr ? kNone : merge->rank;
  if (merge == nullptr) return;
  results_[i] = merge->result;
  heap_.push_back((uint64_t{merge->rank} << 32) | i);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void SymbolMerger::Join(const MergeTable& merges, std::vector<int32_t>& symbols,
                        uint32_t i) {
  const uint32_t gone = links_[i].next;
  const uint32_t next = links_[gone].next;
  symbols[i] = results_[i];
  symbols[gone] = kGone;
  ranks_[gone] = kNone;
  links_[i].next = next;
  if (next != kNone) links_[next].previous = i;
  Look(merges, symbols, i);
  if (links_[i].previous != kNone) Look(merges, symbols, links_[i].previous);
}

}  // namespace tessera
