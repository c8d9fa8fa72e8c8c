// Softmax over the last dim.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// Of a floating x [..., C]; the result is contiguous. Throws for a scalar.
Tensor Softmax(const Tensor& x);
// The gradient of x, from the result and its gradient.
Tensor SoftmaxBackward(const Tensor& y, const Tensor& grad_y);

}  // namespace tessera::ops
