// How a matrix product is dealt out to threads and cut to fit the caches.
// Arithmetic only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/matmul.h"

namespace tessera::cpu {

struct MatMulShape {
  int64_t rows;   // M
  int64_t cols;   // N
  int64_t depth;  // K
};

// Elements [begin, begin + length) of `dim`.
inline TensorView Narrowed(TensorView view, int dim, int64_t begin,
                           int64_t length) {
  view.data =
      view.as<uint8_t>() + begin * view.strides[dim] * ElementBytes(view.dtype);
  view.sizes[dim] = length;
  return view;
}

// Shapes and dtypes fit; the message says which do not.
absl::Status CheckMatMul(const MatMulArgs& args);

// The same product with rows of c contiguous: c^T = b^T a^T where only c's
// columns are. Call after CheckMatMul.
MatMulArgs WithContiguousRows(MatMulArgs args);

// Each matrix's result in rows x cols regions of row_step x col_step.
struct MatMulGrid {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t row_step = 0;
  int64_t col_step = 0;
};
// The sum over k is never split, so the grid does not change results.
MatMulGrid GridOf(const MatMulShape& shape, int64_t num_matrices,
                  int num_threads);

// The blocks of one thread, and its scratch memory in this order.
struct MatMulBlocking {
  int64_t rows;         // Packed at once, all of outer_depth.
  int64_t outer_depth;  // Sums wider than a strip are kept between these.
  int64_t depth;        // Of a packed strip of columns.
  int64_t sums_cols;    // 0: sums of one strip.
  int64_t packed_a_bytes;
  int64_t packed_b_bytes;
  int64_t sums_bytes;

  int64_t total_bytes() const {
    return packed_a_bytes + packed_b_bytes + sums_bytes;
  }
};
// `in_place`: sums are kept in c.
MatMulBlocking BlockingOf(const MatMulShape& shape, int64_t element_bytes,
                          bool in_place);

}  // namespace tessera::cpu
