#include "runtime/ops/rope.h"

#include "absl/strings/str_cat.h"
#include "kernels/rope.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

bool IsTable(const Tensor& table, const Tensor& x) {
  return table.num_dims() == 2 && table.dtype() == DType::kFloat32 &&
         2 * table.size(1) == x.size(3) && table.IsContiguous();
}

bool IsIds(const Tensor& ids, const Tensor& x) {
  const bool fits = ids.shape() == Shape{x.size(1)} ||
                    ids.shape() == Shape{x.size(0), x.size(1)};
  return fits && ids.dtype() == DType::kInt64 && ids.IsContiguous();
}

void CheckRope(const Tensor& x, const RopePositions& positions) {
  const Tensor &cos = positions.cos, &sin = positions.sin;
  if (x.num_dims() != 4 || !IsFloating(x.dtype()) || !IsTable(cos, x) ||
      cos.shape() != sin.shape() || !IsTable(sin, x)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Rope: wants a floating x [B, T, H, D] and contiguous float32 tables ",
        "[P, D / 2]; got x ", x.ToString(), ", cos ", cos.ToString(), ", sin ",
        sin.ToString())));
  }
  if (positions.ids.defined()) {
    if (IsIds(positions.ids, x)) return;
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Rope: wants contiguous int64 ids [T] or [B, T]; got x ",
                     x.ToString(), ", ids ", positions.ids.ToString())));
  }
  if (positions.offset < 0 || positions.offset + x.size(1) > cos.size(0)) {
    throw Error(absl::OutOfRangeError(
        absl::StrCat("Rope: positions [", positions.offset, ", ",
                     positions.offset + x.size(1), ") are not among the ",
                     cos.size(0), " of the tables; make them longer")));
  }
}

}  // namespace

Tensor Rope(const Tensor& x, const RopePositions& positions, bool inverse) {
  CheckRope(x, positions);
  Tensor y = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  const Tensor from =
      x.strides().back() == 1 || x.size(3) <= 1 ? x : Contiguous(x);
  Run(kRope,
      {ViewOf(from), ViewOf(positions.cos), ViewOf(positions.sin), ViewOf(y),
       ViewOf(positions.ids), positions.offset, inverse},
      {&from, &positions.cos, &positions.sin, &positions.ids}, {&y});
  return y;
}

}  // namespace tessera::ops
