// Rotary position embedding.
#pragma once

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// Where the positions of a sequence stand in the tables.
struct RopePositions {
  Tensor cos;          // [P, D / 2], float32, contiguous.
  Tensor sin;          // [P, D / 2], float32, contiguous.
  int64_t offset = 0;  // Of the first position, unless `ids` is defined.
  Tensor ids = {};     // [T] or [B, T], int64: the position of each.
};

// Turns each pair (x[i], x[i + D/2]) of x [B, T, H, D] by its position's
// angles, or back (`inverse`); the result is contiguous. Throws when shapes do
// not fit or a position is not in the tables.
Tensor Rope(const Tensor& x, const RopePositions& positions,
            bool inverse = false);

}  // namespace tessera::ops
