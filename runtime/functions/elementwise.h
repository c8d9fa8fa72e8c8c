// Differentiable functions of one element at a time.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// One dtype; shapes broadcast.
Variable Add(const Variable& a, const Variable& b);
Variable Sub(const Variable& a, const Variable& b);
Variable Mul(const Variable& a, const Variable& b);
Variable Div(const Variable& a, const Variable& b);

// factor * x.
Variable Scale(const Variable& x, double factor);
// x + offset.
Variable AddScalar(const Variable& x, double offset);

enum class GeluKind { kTanh, kErf };
Variable Gelu(const Variable& x, GeluKind kind);
Variable Silu(const Variable& x);
Variable Relu(const Variable& x);
Variable Square(const Variable& x);
Variable Sqrt(const Variable& x);
Variable Exp(const Variable& x);
Variable Log(const Variable& x);
Variable Tanh(const Variable& x);

// silu(gate) * up, of one shape.
Variable SwiGlu(const Variable& gate, const Variable& up);

// `x` in another floating dtype; the gradient is cast back.
Variable Cast(const Variable& x, DType dtype);

// mask ? value : x; the bool or uint8 mask broadcasts to x.
Variable MaskedFill(const Variable& x, const Tensor& mask, double value);

}  // namespace tessera::functions
