// The norms of a range of rows, in the vectors of the machine.
#pragma once

#include <cstdint>

#include "kernels/norm.h"

namespace tessera::cpu {

// Of backward, in the compute type: the weight, and where sums over a block of
// rows go (null: not wanted).
struct NormSums {
  const void* weight;
  void* weight_sum;
  void* bias_sum;
};

// Sums of all blocks, [num_parts, cols].
struct NormParts {
  const void* data;
  int64_t num_parts;
  int64_t cols;
};

// Rows [begin, end). `weight` and `bias` (null: none) were converted to the
// type that sums are kept in.
void LayerNormRows(const LayerNormArgs& args, const void* weight,
                   const void* bias, int64_t begin, int64_t end);
void RmsNormRows(const RmsNormArgs& args, const void* weight, int64_t begin,
                 int64_t end);
// Zeroes the sums first.
void LayerNormBackwardRows(const LayerNormBackwardArgs& args,
                           const NormSums& sums, int64_t begin, int64_t end);
void RmsNormBackwardRows(const RmsNormBackwardArgs& args, const NormSums& sums,
                         int64_t begin, int64_t end);

// to[i] = (accumulate ? to[i] : 0) + sum over blocks b of parts[b, i].
void AddParts(const NormParts& parts, bool accumulate, const TensorView& to);

}  // namespace tessera::cpu
