#include "runtime/functions/parameter_gradient.h"

#include <utility>

#include "runtime/ops/elementwise.h"

namespace tessera::functions {

ParameterGradient::ParameterGradient(Node& node, int input, const Shape& shape,
                                     const TensorOptions& parameter)
    : dtype_(parameter.dtype) {
  if (!node.NeedsGrad(input)) return;
  if (std::optional<GradientTarget> target = node.LeafTarget(input)) {
    target_ = *std::move(target);
    is_leaf_ = true;
    if (!target_.buffer.IsContiguous()) MoveAside();
    return;
  }
  target_.buffer =
      Tensor::Empty(shape, {AccumulateDType(dtype_), parameter.device});
}

// What is there already comes along, so that the sum has the bits that it has
// in a contiguous buffer.
void ParameterGradient::MoveAside() {
  strided_ = target_.buffer;
  target_.buffer =
      Tensor::Empty(strided_.shape(), {strided_.dtype(), strided_.device()});
  if (target_.accumulate) ops::Copy(strided_, target_.buffer);
}

Tensor ParameterGradient::Result() const {
  if (strided_.defined()) ops::Copy(target_.buffer, strided_);
  if (is_leaf_ || !target_.buffer.defined()) return Tensor();
  return target_.buffer.dtype() == dtype_ ? target_.buffer
                                          : ops::Cast(target_.buffer, dtype_);
}

}  // namespace tessera::functions
