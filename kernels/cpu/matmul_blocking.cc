#include "kernels/cpu/matmul_blocking.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

// Multiples of what any instruction set's tile takes.
constexpr int64_t kRowUnit = 8;
constexpr int64_t kColUnit = 48;

constexpr int64_t kDepth = 512;
constexpr int64_t kOuterDepth = 4096;
constexpr int64_t kPackedBytes = int64_t{3} << 19;  // Of rows, about.
constexpr int64_t kMinBlockRows = 256;  // Or columns are packed too often.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t unit) { return CeilDiv(a, unit) * unit; }

// The most equal parts of `size` that are multiples of `unit` and at most
// about `largest`.
int64_t EvenStep(int64_t size, int64_t largest, int64_t unit) {
  if (size == 0) return unit;
  return RoundUp(CeilDiv(size, CeilDiv(size, largest)), unit);
}

std::string SizesOf(const TensorView& view) {
  std::string text = "[";
  for (int d = 0; d < view.num_dims; ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", view.sizes[d]);
  }
  return text + "]";
}

absl::Status Invalid(const MatMulArgs& args, const char* problem) {
  return absl::InvalidArgumentError(absl::StrCat(
      "MatMul: ", problem, ": a ", DTypeName(args.a.dtype), " ",
      SizesOf(args.a), ", b ", DTypeName(args.b.dtype), " ", SizesOf(args.b),
      ", c ", DTypeName(args.c.dtype), " ", SizesOf(args.c)));
}

absl::Status CheckDTypes(const MatMulArgs& args) {
  if (!IsFloating(args.a.dtype)) {
    return Invalid(args, "integers have no product; cast to a float first");
  }
  if (args.a.dtype != args.b.dtype) {
    return Invalid(args, "a and b must be of one dtype; cast one");
  }
  if (args.c.dtype != args.a.dtype &&
      args.c.dtype != AccumulateDType(args.a.dtype)) {
    return Invalid(args, "c must have the dtype of a, or that of its sums");
  }
  if (args.bias.defined() &&
      AccumulateDType(args.bias.dtype) != AccumulateDType(args.a.dtype)) {
    return Invalid(args, "bias must be a float of the same kind");
  }
  return absl::OkStatus();
}

absl::Status CheckShapes(const MatMulArgs& args) {
  const TensorView &a = args.a, &b = args.b, &c = args.c;
  if ((c.num_dims != 2 && c.num_dims != 3) || a.num_dims != c.num_dims ||
      b.num_dims != c.num_dims) {
    return Invalid(args, "all must have two dims, or all three");
  }
  if (a.size(-1) != b.size(-2)) return Invalid(args, "inner sizes differ");
  if (c.size(-2) != a.size(-2) || c.size(-1) != b.size(-1)) {
    return Invalid(args, "c has not the shape of the product");
  }
  if (c.num_dims == 3 &&
      (a.sizes[0] != c.sizes[0] || b.sizes[0] != c.sizes[0])) {
    return Invalid(args, "batch sizes differ");
  }
  if (args.bias.defined() &&
      (args.bias.num_dims != 1 || args.bias.sizes[0] != c.size(-1))) {
    return Invalid(args, "bias must have one element a column of c");
  }
  return absl::OkStatus();
}

void Transpose(TensorView& view) {
  const int last = view.num_dims - 1;
  std::swap(view.sizes[last], view.sizes[last - 1]);
  std::swap(view.strides[last], view.strides[last - 1]);
}

}  // namespace

absl::Status CheckMatMul(const MatMulArgs& args) {
  RETURN_IF_ERROR(CheckDTypes(args));
  RETURN_IF_ERROR(CheckShapes(args));
  const TensorView& c = args.c;
  const bool by_rows = c.stride(-1) == 1 || c.size(-1) == 1;
  const bool by_columns = c.stride(-2) == 1 || c.size(-2) == 1;
  if (by_rows || (by_columns && !args.bias.defined())) return absl::OkStatus();
  return Invalid(args, "rows of c (columns, without bias) must be contiguous");
}

MatMulArgs WithContiguousRows(MatMulArgs args) {
  if (args.c.stride(-1) == 1 || args.c.size(-1) == 1) return args;
  std::swap(args.a, args.b);
  Transpose(args.a);
  Transpose(args.b);
  Transpose(args.c);
  return args;
}

MatMulGrid GridOf(const MatMulShape& shape, int64_t num_matrices,
                  int num_threads) {
  MatMulGrid best;
  int64_t best_cost = INT64_MAX;
  const int64_t row_units = CeilDiv(shape.rows, kRowUnit);
  const int64_t col_units = CeilDiv(shape.cols, kColUnit);
  // Whole matrices are dealt out where there are enough.
  const int64_t parts = num_matrices >= num_threads ? 1 : num_threads;
  for (int64_t rows = 1; rows <= parts; ++rows) {
    const int64_t cols = parts / rows;
    const int64_t row_step = CeilDiv(row_units, rows) * kRowUnit;
    const int64_t col_step = CeilDiv(col_units, cols) * kColUnit;
    // Of the largest region: its products, and what it packs.
    const int64_t cost = row_step * col_step + 8 * (row_step + col_step);
    if (cost < best_cost) {
      best_cost = cost;
      best = {CeilDiv(shape.rows, row_step), CeilDiv(shape.cols, col_step),
              row_step, col_step};
    }
  }
  return best;
}

MatMulBlocking BlockingOf(const MatMulShape& shape, int64_t element_bytes,
                          bool in_place) {
  MatMulBlocking blocking;
  blocking.outer_depth = EvenStep(shape.depth, kOuterDepth, 1);
  blocking.depth = EvenStep(blocking.outer_depth, kDepth, 1);
  const int64_t rows_that_fit =
      kPackedBytes / (blocking.outer_depth * element_bytes);
  blocking.rows =
      EvenStep(shape.rows, std::max(rows_that_fit, kMinBlockRows), kRowUnit);
  const bool one_outer_block = shape.depth <= blocking.outer_depth;
  blocking.sums_cols = one_outer_block ? 0 : RoundUp(shape.cols, kColUnit);
  const int64_t row_bytes = blocking.outer_depth * element_bytes;
  blocking.packed_a_bytes = RoundUp(blocking.rows * row_bytes, 64);
  blocking.packed_b_bytes =
      RoundUp(blocking.depth * kColUnit * element_bytes, 64);
  blocking.sums_bytes =
      in_place ? 0
               : RoundUp(blocking.rows * element_bytes *
                             std::max(blocking.sums_cols, kColUnit),
                         64);
  return blocking;
}

}  // namespace tessera::cpu
