// Differentiable matrix products.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// a [..., M, K] times b [K, N] or b [..., K, N]; see ops::MatMul.
Variable MatMul(const Variable& a, const Variable& b);

enum class WeightLayout {
  kOutIn,  // [out, in], as torch's nn.Linear and most models have it.
  kInOut,  // [in, out], as GPT-2's Conv1D has it.
};

// y [..., out] = x [..., in] times weight, plus bias [out] unless undefined.
// x and weight are of one dtype. Backward writes the gradients of weight and
// bias where their leaves want them, in float32 for 16-bit floats.
Variable Linear(const Variable& x, const Variable& weight, const Variable& bias,
                WeightLayout layout = WeightLayout::kOutIn);

}  // namespace tessera::functions
