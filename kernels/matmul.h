// Matrix products.
#pragma once

#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// c = a b (+ bias) (+ c). a is [M, K], b [K, N], c [M, N], or all three have
// one more dim in front, of equal size: a batch of products. Any strides: a
// transposed matrix is a view with its strides exchanged.
//
// a and b are of one floating type; c is of the same, or float32. Sums are
// kept in float32 (float64 for float64), whatever c is, and rounded once.
//
// Each element is the same sequence of operations wherever it stands and
// however many threads there are; but of bfloat16 on cores that multiply it,
// where a library's choice may follow the number of threads.
struct MatMulArgs {
  TensorView a;
  TensorView b;
  TensorView c;
  TensorView bias;          // [N], any floating type; or undefined.
  bool accumulate = false;  // Add to what c holds.
};

// out[n] = sum over m of x[m, n] (+ out[n]): the gradient of a bias. x is
// floating, its rows contiguous; out is contiguous, of AccumulateDType of x's.
struct BiasGradientArgs {
  TensorView x;
  TensorView out;
  bool accumulate = false;
};

namespace cpu {
absl::Status MatMul(const MatMulArgs& args, const Launch& launch);
absl::Status BiasGradient(const BiasGradientArgs& args, const Launch& launch);

// How products of bfloat16 are made: by the core's own instruction where it
// has one, or in float32, converted while packing, which works everywhere.
enum class BFloat16Product { kNative, kInFloat32 };
// Of this process; kNative is ignored on a core without the instruction.
void SetBFloat16ProductForTest(BFloat16Product product);
}  // namespace cpu

namespace cuda {
absl::Status MatMul(const MatMulArgs& args, const Launch& launch);
absl::Status BiasGradient(const BiasGradientArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<MatMulArgs> kMatMul{"MatMul", cpu::MatMul,
                                            cuda::MatMul};
inline constexpr Kernel<BiasGradientArgs> kBiasGradient{
    "BiasGradient", cpu::BiasGradient, cuda::BiasGradient};

}  // namespace tessera
