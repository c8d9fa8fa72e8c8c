// A tensor seen as rows of its last dim: what row kernels take.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// [..., C] as [R, C] with unit column stride: a view where the strides allow
// it, else a contiguous copy. A scalar is an error of the caller's checks.
Tensor AsRows(const Tensor& x);

}  // namespace tessera::ops
