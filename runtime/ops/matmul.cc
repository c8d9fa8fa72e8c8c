#include "runtime/ops/matmul.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/matmul.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/rows.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

[[noreturn]] void Refuse(const std::string& wanted, const Tensor& a,
                         const Tensor& b) {
  throw Error(absl::InvalidArgumentError(absl::StrCat("MatMul: wants ", wanted,
                                                      "; got a ", a.ToString(),
                                                      ", b ", b.ToString())));
}

// The shape of the product. Throws when there is none.
Shape CheckMatMul(const Tensor& a, const Tensor& b) {
  if (!IsFloating(a.dtype()) || a.dtype() != b.dtype()) {
    Refuse("floats of one dtype, so cast one", a, b);
  }
  if (a.num_dims() < 2 || b.num_dims() < 2) {
    Refuse("at least two dims; reshape a vector to a row or a column", a, b);
  }
  if (a.size(-1) != b.size(-2)) Refuse("equal inner sizes", a, b);
  bool equal = b.num_dims() == 2 || b.num_dims() == a.num_dims();
  for (int d = 0; equal && b.num_dims() > 2 && d < a.num_dims() - 2; ++d) {
    equal = a.size(d) == b.size(d);
  }
  if (!equal) Refuse("a b of two dims or of a's leading dims", a, b);
  Shape shape = a.shape();
  shape.set_dim(-1, b.size(-1));
  return shape;
}

// [..., M, N] as [batch, M, N]: a view, or a copy where memory has gaps.
Tensor AsBatch(const Tensor& x) {
  if (x.num_dims() == 3) return x;
  int64_t batch = 1;
  for (int d = 0; d < x.num_dims() - 2; ++d) batch *= x.size(d);
  const Shape shape = {batch, x.size(-2), x.size(-1)};
  return x.IsContiguous() ? x.Reshape(shape) : Contiguous(x).Reshape(shape);
}

}  // namespace

Tensor MatMul(const Tensor& a, const Tensor& b) {
  Tensor out = Tensor::Empty(CheckMatMul(a, b), {a.dtype(), a.device()});
  MatMulInto(a, b, out);
  return out;
}

void MatMulInto(const Tensor& a, const Tensor& b, const Tensor& out,
                const MatMulOptions& options) {
  const bool fits = CheckMatMul(a, b) == out.shape() && out.IsContiguous();
  if (!fits) {
    Refuse(absl::StrCat("a contiguous result, not ", out.ToString()), a, b);
  }
  const bool batched = b.num_dims() > 2;
  const auto matrices = [&](const Tensor& x) {
    if (x.num_dims() == 2) return x;
    return batched ? AsBatch(x) : AsRows(x);
  };
  const Tensor a_view = matrices(a);
  const Tensor b_view = matrices(b);
  const Tensor c_view = matrices(out);
  Run(kMatMul,
      {ViewOf(a_view), ViewOf(b_view), ViewOf(c_view), ViewOf(options.bias),
       options.accumulate},
      {&a_view, &b_view, &options.bias}, {&c_view});
}

void BiasGradientInto(const Tensor& x, const Tensor& out, bool accumulate) {
  const bool fits = IsFloating(x.dtype()) && x.num_dims() >= 1 &&
                    out.shape() == Shape{x.size(-1)} && out.IsContiguous() &&
                    out.dtype() == AccumulateDType(x.dtype());
  if (!fits) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "BiasGradient: wants a floating x [..., N] and a contiguous sum [N] ",
        "of the dtype of its sums; got x ", x.ToString(), ", sum ",
        out.ToString())));
  }
  const Tensor rows = x.num_dims() == 1 ? x.Unsqueeze(0) : AsRows(x);
  Run(kBiasGradient, {ViewOf(rows), ViewOf(out), accumulate}, {&rows}, {&out});
}

}  // namespace tessera::ops
