// Kernels of one element at a time: copies and casts, arithmetic, activation
// functions, masks.
//
// All operands have the same sizes and any strides; an operand that is
// broadcast has stride 0. Arithmetic on 16-bit floats is done in float32 and
// rounded once. The bits of a result depend on its operands' values alone,
// never on offset, strides or number of threads.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// dst = src, converted: floats round to nearest even, floats to integers
// truncate, anything to bool is `!= 0`. The two do not overlap.
struct CopyArgs {
  TensorView src;
  TensorView dst;
};

// dst = value, converted as Copy does from float64.
struct FillArgs {
  TensorView dst;
  double value = 0;
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv };

// y = a op b. One dtype, any but bool; y may be a or b.
struct BinaryArgs {
  BinaryOp op = BinaryOp::kAdd;
  TensorView a;
  TensorView b;
  TensorView y;
};

enum class UnaryOp : uint8_t {
  kGeluTanh,
  kGeluErf,
  kSilu,
  kRelu,
  kSquare,
  kSqrt,
  kExp,
  kLog,
  kTanh,
};

// y = op(x). One floating dtype; y may be x.
struct UnaryArgs {
  UnaryOp op = UnaryOp::kRelu;
  TensorView x;
  TensorView y;
};

// dx = dy * op'(x). One floating dtype; dx may be dy or x.
struct UnaryBackwardArgs {
  UnaryOp op = UnaryOp::kRelu;
  TensorView x;
  TensorView dy;
  TensorView dx;
};

// y = factor * x + offset. One dtype, any but bool; for integers factor and
// offset are whole numbers. y may be x.
struct AffineArgs {
  TensorView x;
  TensorView y;
  double factor = 1;
  double offset = 0;
};

// y += factor * x. Floats: x of any of the three narrow dtypes into y of any
// of them, or both float64. Integers: one dtype, a whole factor.
struct AccumulateArgs {
  TensorView x;
  TensorView y;
  double factor = 1;
};

// y = silu(gate) * up. One floating dtype.
struct SwiGluArgs {
  TensorView gate;
  TensorView up;
  TensorView y;
};

// Gradients of SwiGlu; either may be undefined. One floating dtype.
struct SwiGluBackwardArgs {
  TensorView gate;
  TensorView up;
  TensorView dy;
  TensorView dgate;
  TensorView dup;
};

// y = mask ? a : b, with a bool or uint8 mask. One dtype of a, b and y; y may
// be a or b.
struct WhereArgs {
  TensorView mask;
  TensorView a;
  TensorView b;
  TensorView y;
};

namespace cpu {
absl::Status Copy(const CopyArgs& args, const Launch& launch);
absl::Status Fill(const FillArgs& args, const Launch& launch);
absl::Status Binary(const BinaryArgs& args, const Launch& launch);
absl::Status Unary(const UnaryArgs& args, const Launch& launch);
absl::Status UnaryBackward(const UnaryBackwardArgs& args, const Launch& launch);
absl::Status Affine(const AffineArgs& args, const Launch& launch);
absl::Status Accumulate(const AccumulateArgs& args, const Launch& launch);
absl::Status SwiGlu(const SwiGluArgs& args, const Launch& launch);
absl::Status SwiGluBackward(const SwiGluBackwardArgs& args,
                            const Launch& launch);
absl::Status Where(const WhereArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Copy(const CopyArgs& args, const Launch& launch);
absl::Status Fill(const FillArgs& args, const Launch& launch);
absl::Status Binary(const BinaryArgs& args, const Launch& launch);
absl::Status Unary(const UnaryArgs& args, const Launch& launch);
absl::Status UnaryBackward(const UnaryBackwardArgs& args, const Launch& launch);
absl::Status Affine(const AffineArgs& args, const Launch& launch);
absl::Status Accumulate(const AccumulateArgs& args, const Launch& launch);
absl::Status SwiGlu(const SwiGluArgs& args, const Launch& launch);
absl::Status SwiGluBackward(const SwiGluBackwardArgs& args,
                            const Launch& launch);
absl::Status Where(const WhereArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<CopyArgs> kCopy{"Copy", cpu::Copy, cuda::Copy};
inline constexpr Kernel<FillArgs> kFill{"Fill", cpu::Fill, cuda::Fill};
inline constexpr Kernel<BinaryArgs> kBinary{"Binary", cpu::Binary,
                                            cuda::Binary};
inline constexpr Kernel<UnaryArgs> kUnary{"Unary", cpu::Unary, cuda::Unary};
inline constexpr Kernel<UnaryBackwardArgs> kUnaryBackward{
    "UnaryBackward", cpu::UnaryBackward, cuda::UnaryBackward};
inline constexpr Kernel<AffineArgs> kAffine{"Affine", cpu::Affine,
                                            cuda::Affine};
inline constexpr Kernel<AccumulateArgs> kAccumulate{
    "Accumulate", cpu::Accumulate, cuda::Accumulate};
inline constexpr Kernel<SwiGluArgs> kSwiGlu{"SwiGlu", cpu::SwiGlu,
                                            cuda::SwiGlu};
inline constexpr Kernel<SwiGluBackwardArgs> kSwiGluBackward{
    "SwiGluBackward", cpu::SwiGluBackward, cuda::SwiGluBackward};
inline constexpr Kernel<WhereArgs> kWhere{"Where", cpu::Where, cuda::Where};

}  // namespace tessera
