// Layer norm and root-mean-square norm over the last dim.
//
// Every `x`, `y` and their gradients are [rows, cols] with unit column stride;
// rows may be strided. Statistics are float32 (float64 for float64).
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + eps).
struct LayerNormArgs {
  TensorView x;       // [R, C]
  TensorView weight;  // [C], any floating dtype.
  TensorView bias;    // [C], or undefined.
  TensorView y;       // [R, C]
  TensorView mean;    // [R], or undefined when backward is not wanted.
  TensorView rstd;    // [R], likewise.
  double eps = 1e-5;
};

// Gradients that are undefined are not computed. Those of weight and bias are
// float32 (float64); each is added to, or overwritten. They are summed over
// fixed blocks of rows, so the number of threads does not change a bit.
struct LayerNormBackwardArgs {
  TensorView x;
  TensorView weight;
  TensorView mean;
  TensorView rstd;
  TensorView grad_y;
  TensorView grad_x;
  TensorView grad_weight;
  TensorView grad_bias;
  bool accumulate_weight = false;
  bool accumulate_bias = false;
};

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
struct RmsNormArgs {
  TensorView x;
  TensorView weight;
  TensorView y;
  TensorView rstd;  // [R], or undefined when backward is not wanted.
  double eps = 1e-6;
};

// As LayerNormBackwardArgs.
struct RmsNormBackwardArgs {
  TensorView x;
  TensorView weight;
  TensorView rstd;
  TensorView grad_y;
  TensorView grad_x;
  TensorView grad_weight;
  bool accumulate_weight = false;
};

namespace cpu {
absl::Status LayerNorm(const LayerNormArgs& args, const Launch& launch);
absl::Status LayerNormBackward(const LayerNormBackwardArgs& args,
                               const Launch& launch);
absl::Status RmsNorm(const RmsNormArgs& args, const Launch& launch);
absl::Status RmsNormBackward(const RmsNormBackwardArgs& args,
                             const Launch& launch);
}  // namespace cpu
namespace cuda {
absl::Status LayerNorm(const LayerNormArgs& args, const Launch& launch);
absl::Status LayerNormBackward(const LayerNormBackwardArgs& args,
                               const Launch& launch);
absl::Status RmsNorm(const RmsNormArgs& args, const Launch& launch);
absl::Status RmsNormBackward(const RmsNormBackwardArgs& args,
                             const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<LayerNormArgs> kLayerNorm{"LayerNorm", cpu::LayerNorm,
                                                  cuda::LayerNorm};
inline constexpr Kernel<LayerNormBackwardArgs> kLayerNormBackward{
    "LayerNormBackward", cpu::LayerNormBackward, cuda::LayerNormBackward};
inline constexpr Kernel<RmsNormArgs> kRmsNorm{"RmsNorm", cpu::RmsNorm,
                                              cuda::RmsNorm};
inline constexpr Kernel<RmsNormBackwardArgs> kRmsNormBackward{
    "RmsNormBackward", cpu::RmsNormBackward, cuda::RmsNormBackward};

}  // namespace tessera
