// Ops of one element at a time: copies, casts, arithmetic, activation
// functions. Arithmetic on 16-bit floats is done in float32 and rounded once.
// All throw on wrong shapes, dtypes or devices.
#pragma once

#include "kernels/elementwise.h"
#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// dst = src, of the same shape, converted to dst's dtype.
void Copy(const Tensor& src, const Tensor& dst);
// `x` itself when it is row-major without gaps, else a copy that is.
Tensor Contiguous(const Tensor& x);
// A row-major copy.
Tensor Clone(const Tensor& x);
// `x` itself when it has the dtype already, else a row-major copy.
Tensor Cast(const Tensor& x, DType dtype);

void Fill(const Tensor& x, double value);
Tensor Full(const Shape& shape, double value,
            const TensorOptions& options = {});
Tensor Zeros(const Shape& shape, const TensorOptions& options = {});
Tensor Ones(const Shape& shape, const TensorOptions& options = {});
Tensor ZerosLike(const Tensor& x);
// [0, 1, ..., n - 1].
Tensor Arange(int64_t n, const TensorOptions& options = {DType::kInt64});

// One dtype; shapes broadcast.
Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);

// dst += alpha * src; src broadcasts to dst. Any of float32 and the 16-bit
// floats into any of them; others of one dtype.
void AddInto(const Tensor& dst, const Tensor& src, double alpha = 1.0);
// dst *= src, of one dtype; src broadcasts to dst.
void MulInto(const Tensor& dst, const Tensor& src);

// factor * x + offset.
Tensor Affine(const Tensor& x, double factor, double offset);
Tensor Scale(const Tensor& x, double factor);
Tensor AddScalar(const Tensor& x, double offset);
void ScaleInPlace(const Tensor& x, double factor);

// op(x), of a floating dtype.
Tensor Unary(UnaryOp op, const Tensor& x);
// dy * op'(x).
Tensor UnaryBackward(UnaryOp op, const Tensor& x, const Tensor& dy);

// silu(gate) * up, of one shape and floating dtype.
Tensor SwiGlu(const Tensor& gate, const Tensor& up);
struct SwiGluGradients {
  Tensor gate;
  Tensor up;
};
// An unwanted gradient is left undefined.
SwiGluGradients SwiGluBackward(const Tensor& gate, const Tensor& up,
                               const Tensor& dy, bool want_gate = true,
                               bool want_up = true);

// mask ? a : b, with a bool or uint8 mask; all three broadcast.
Tensor Where(const Tensor& mask, const Tensor& a, const Tensor& b);
// mask ? value : x; the mask broadcasts to x.
Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value);

}  // namespace tessera::ops
