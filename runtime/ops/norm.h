// Norms over the last dim.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// `mean` and `rstd` are [rows], float32 (float64 for float64): what backward
// needs.
struct NormResult {
  Tensor y;
  Tensor mean;  // Of layer norm only.
  Tensor rstd;
};

// x [..., C], weight [C], bias [C] or undefined; y has x's shape and dtype.
// Throws when shapes do not fit or C is 0.
NormResult LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps);
// y = x / sqrt(mean(x^2) + eps) * weight.
NormResult RmsNorm(const Tensor& x, const Tensor& weight, double eps);

// Where gradients of a norm go: undefined ones are not computed. Those of the
// parameters are [C], contiguous, float32 (float64); they are overwritten, or
// added to.
struct NormGradients {
  Tensor x;  // Of x's shape and dtype, contiguous.
  Tensor weight;
  Tensor bias;
  bool accumulate_weight = false;
  bool accumulate_bias = false;
};

// `forward` is what LayerNorm gave (y is not used).
void LayerNormBackward(const Tensor& x, const Tensor& weight,
                       const NormResult& forward, const Tensor& grad_y,
                       const NormGradients& gradients);
void RmsNormBackward(const Tensor& x, const Tensor& weight,
                     const NormResult& forward, const Tensor& grad_y,
                     const NormGradients& gradients);

}  // namespace tessera::ops
