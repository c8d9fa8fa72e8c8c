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

  AttentionBlock(const AttentionMask& mask, const AttentionSizes& sizes,
                 int64_t query, int64_t key)
      : num_queries(std::min(kQueriesOfBlock, sizes.queries - query)),
        num_keys(std::min(kKeysOfBlock, sizes.keys - key)),
        diagonal(query + sizes.keys - sizes.queries - key),
        window(mask.causal ? mask.sliding_window : 0),
        causal(mask.causal) {}

  // Keys that query `i` sees: [KeyBegin, KeyEnd), perhaps empty.
  int64_t KeyEnd(int64_t i) const {
    if (!causal) return num_keys;
    return std::clamp<int64_t>(i + diagonal + 1, 0, num_keys);
  }
  int64_t KeyBegin(int64_t i) const {
    if (window == 0) return 0;
    return std::clamp<int64_t>(i + diagonal - window + 1, 0, num_keys);
  }
  // Queries that see one of the keys [j, last]: [QueryBegin, QueryEnd).
  int64_t QueryBegin(int64_t j) const {
    if (!causal) return 0;
    return std::clamp<int64_t>(j - diagonal, 0, num_queries);
  }
  int64_t QueryEnd(int64_t last) const {
    if (window == 0) return num_queries;
    return std::clamp<int64_t>(last - diagonal + window, 0, num_queries);
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
