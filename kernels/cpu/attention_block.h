// Which part of a block of scores is visible, and the shapes of blocks.
// Arithmetic only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"

namespace tessera::cpu {

// Queries and keys of a block. Queries fill vectors of any instruction set.
inline constexpr int64_t kQueriesOfBlock = 64;
inline constexpr int64_t kKeysOfBlock = 64;

// The first key that each query of a row may see; null where there are no
// segments.
inline const int64_t* SegmentStartsOf(const AttentionArgs& args,
                                      int64_t batch) {
  if (!args.segment_starts.defined()) return nullptr;
  return args.segment_starts.as<int64_t>() + batch * args.q.sizes[1];
}

struct AttentionSizes {
  int64_t batch, queries, keys, heads, key_heads, dim;

  explicit AttentionSizes(const AttentionArgs& args)
      : batch(args.q.sizes[0]),
        queries(args.q.sizes[1]),
        keys(args.k.sizes[1]),
        heads(args.q.sizes[2]),
        key_heads(args.k.sizes[2]),
        dim(args.q.sizes[3]) {}
};

// A block of `num_queries` x `num_keys` scores. Indices count from the block's
// first query and key.
struct AttentionBlock {
  int64_t num_queries;
  int64_t num_keys;
  int64_t diagonal;  // Causal: query i sees keys up to i + diagonal.
  int64_t window;    // Of the mask; 0: none.
  bool causal;
  const int64_t* starts;  // Of the block's queries, rising; null: none.
  int64_t first_key;      // What `starts` count from is this before the block.

  AttentionBlock(const AttentionMask& mask, const AttentionSizes& sizes,
                 int64_t query, int64_t key, const int64_t* segment_starts)
      : num_queries(std::min(kQueriesOfBlock, sizes.queries - query)),
        num_keys(std::min(kKeysOfBlock, sizes.keys - key)),
        diagonal(query + sizes.keys - sizes.queries - key),
        window(mask.causal ? mask.sliding_window : 0),
        causal(mask.causal),
        starts(segment_starts == nullptr ? nullptr : segment_starts + query),
        first_key(key) {}

  // Keys that query `i` sees: [KeyBegin, KeyEnd), perhaps empty.
  int64_t KeyEnd(int64_t i) const {
    if (!causal) return num_keys;
    return std::clamp<int64_t>(i + diagonal + 1, 0, num_keys);
  }
  int64_t KeyBegin(int64_t i) const {
    const int64_t begin = window == 0 ? 0 : i + diagonal - window + 1;
    const int64_t start = starts == nullptr ? 0 : starts[i] - first_key;
    return std::clamp<int64_t>(std::max(begin, start), 0, num_keys);
  }
  // Queries that see one of the keys [j, last]: [QueryBegin, QueryEnd).
  int64_t QueryBegin(int64_t j) const {
    if (!causal) return 0;
    return std::clamp<int64_t>(j - diagonal, 0, num_queries);
  }
  int64_t QueryEnd(int64_t last) const {
    int64_t end = num_queries;
    if (window > 0) end = std::min(end, last - diagonal + window);
    if (starts != nullptr) {
      end = std::min<int64_t>(
          end,
          std::upper_bound(starts, starts + num_queries, first_key + last) -
              starts);
    }
    return std::max<int64_t>(end, 0);
  }
  // Every query sees every key.
  bool AllVisible() const {
    return KeyEnd(0) == num_keys && KeyBegin(num_queries - 1) == 0;
  }
  bool NoneVisible() const {
    return QueryBegin(0) >= QueryEnd(num_keys - 1) ||
           KeyBegin(0) >= KeyEnd(num_queries - 1);
  }
};

}  // namespace tessera::cpu
