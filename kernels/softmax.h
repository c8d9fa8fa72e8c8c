// Softmax over the last dim.
#pragma once

#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// y = exp(x - max x) / sum exp(x - max x), row by row. x, y [R, C], of one
// floating type, columns of stride 1. A row that is -inf throughout gives NaN.
struct SoftmaxArgs {
  TensorView x;
  TensorView y;
};

// grad_x = y (grad_y - sum grad_y y).
struct SoftmaxBackwardArgs {
  TensorView y;
  TensorView grad_y;
  TensorView grad_x;
};

namespace cpu {
absl::Status Softmax(const SoftmaxArgs& args, const Launch& launch);
absl::Status SoftmaxBackward(const SoftmaxBackwardArgs& args,
                             const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Softmax(const SoftmaxArgs& args, const Launch& launch);
absl::Status SoftmaxBackward(const SoftmaxBackwardArgs& args,
                             const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<SoftmaxArgs> kSoftmax{"Softmax", cpu::Softmax,
                                              cuda::Softmax};
inline constexpr Kernel<SoftmaxBackwardArgs> kSoftmaxBackward{
    "SoftmaxBackward", cpu::SoftmaxBackward, cuda::SoftmaxBackward};

}  // namespace tessera
