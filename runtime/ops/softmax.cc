#include "runtime/ops/softmax.h"

#include "absl/strings/str_cat.h"
#include "kernels/softmax.h"
#include "runtime/ops/rows.h"
#include "runtime/ops/run.h"

namespace tessera::ops {

Tensor Softmax(const Tensor& x) {
  if (!IsFloating(x.dtype()) || x.num_dims() == 0) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Softmax: wants a floating x [..., C]; got ", x.ToString())));
  }
  Tensor y = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  const Tensor x_rows = AsRows(x);
  const Tensor y_rows = AsRows(y);
  Run(kSoftmax, {ViewOf(x_rows), ViewOf(y_rows)}, {&x_rows}, {&y_rows});
  return y;
}

Tensor SoftmaxBackward(const Tensor& y, const Tensor& grad_y) {
  Tensor grad_x = Tensor::Empty(y.shape(), {y.dtype(), y.device()});
  const Tensor y_rows = AsRows(y);
  const Tensor grad_y_rows = AsRows(grad_y);
  const Tensor grad_x_rows = AsRows(grad_x);
  Run(kSoftmaxBackward,
      {ViewOf(y_rows), ViewOf(grad_y_rows), ViewOf(grad_x_rows)},
      {&y_rows, &grad_y_rows}, {&grad_x_rows});
  return grad_x;
}

}  // namespace tessera::ops
