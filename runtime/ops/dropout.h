// Dropout, with masks that a key names.
#pragma once

#include "kernels/dropout.h"
#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// x / (1 - probability) where the key's mask keeps, else 0; the gradient is the
// same of the result's. x [B, ...] floating, dim 0 is the sample;
// 0 <= probability < 1.
Tensor Dropout(const Tensor& x, const DropoutKey& key, double probability);

}  // namespace tessera::ops
