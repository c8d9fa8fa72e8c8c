// Matrix products of tensors.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// a [..., M, K] times b [K, N], or times b [..., K, N] with equal leading
// dims, is [..., M, N] of a's dtype. Transposed operands are views (see
// Tensor::Transpose) and cost no copy. Throws when shapes do not fit, or
// dtypes differ or are not floating.
Tensor MatMul(const Tensor& a, const Tensor& b);

struct MatMulOptions {
  bool accumulate = false;  // Add to what `out` holds.
  Tensor bias = {};         // [N], added to each row; or undefined.
};

// The same into `out`, contiguous, of the shape of the product and of a's
// dtype or AccumulateDType of it.
void MatMulInto(const Tensor& a, const Tensor& b, const Tensor& out,
                const MatMulOptions& options = {});

// out[n] = sum of x [..., n] over its leading dims, or adds it to out [N],
// which is contiguous, of AccumulateDType of x's dtype.
void BiasGradientInto(const Tensor& x, const Tensor& out, bool accumulate);

}  // namespace tessera::ops
