#include "runtime/functions/parameter_gradient.h"

#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera::functions {

ParameterGradient::ParameterGradient(Node& node, int input, const Shape& shape,
                                     const TensorOptions& parameter)
    : dtype_(parameter.dtype) {
  if (!node.NeedsGrad(input)) return;
  if (std::optional<GradientTarget> target = node.LeafTarget(input)) {
    TESSERA_CHECK(target->buffer.IsContiguous());
    target_ = *std::move(target);
    is_leaf_ = true;
    return;
  }
  target_.buffer =
      Tensor::Empty(shape, {AccumulateDType(dtype_), parameter.device});
}

Tensor ParameterGradient::Result() const {
  if (is_leaf_ || !target_.buffer.defined()) return Tensor();
  return target_.buffer.dtype() == dtype_ ? target_.buffer
                                          : ops::Cast(target_.buffer, dtype_);
}

}  // namespace tessera::functions
