// Differentiable norms over the last dim.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// (x - mean) / sqrt(variance + eps) * weight + bias. x [..., C], weight [C],
// bias [C] or undefined; statistics in float32 (float64 for float64). Throws
// when shapes do not fit.
Variable LayerNorm(const Variable& x, const Variable& weight,
                   const Variable& bias, double eps);

// x / sqrt(mean(x^2) + eps) * weight; shapes and types as above.
Variable RmsNorm(const Variable& x, const Variable& weight, double eps);

}  // namespace tessera::functions
