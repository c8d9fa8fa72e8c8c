#include "runtime/ops/rows.h"

#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera::ops {

Tensor AsRows(const Tensor& x) {
  TESSERA_CHECK(x.num_dims() >= 1);
  const int64_t cols = x.size(-1);
  if (x.num_dims() == 2 && (x.strides()[1] == 1 || cols == 1)) return x;
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.num_dims(); ++d) rows *= x.size(d);
  const Shape shape = {rows, cols};
  return x.IsContiguous() ? x.Reshape(shape) : Contiguous(x).Reshape(shape);
}

}  // namespace tessera::ops
