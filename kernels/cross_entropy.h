// Softmax and negative log-likelihood in one: losses of rows of logits.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// loss (+)= scale * sum of (logsumexp(logits[i]) - logits[i, targets[i]]) over
// the rows i whose target is not ignore_index, added in the order of rows in
// float64. Any other target outside [0, V) is an error that names its position.
struct CrossEntropyArgs {
  TensorView logits;     // [N, V], unit column stride.
  TensorView targets;    // [N], int64.
  TensorView logsumexp;  // [N], float32 (float64); written, or undefined.
  TensorView loss;       // A scalar, float32 (float64).
  // [M], int64, or undefined: the scale is divided by the number of elements
  // that are not ignore_index (a mean over all targets; 0 when there are none).
  TensorView counted;
  int64_t ignore_index = -100;
  double scale = 1.0;
  bool accumulate = false;
};

// grad_logits = grad_loss * scale * (softmax(logits) - one_hot(targets)), zero
// in ignored rows. grad_logits may be the memory of logits, row by row: also as
// elements of a smaller dtype at the start of each row.
struct CrossEntropyBackwardArgs {
  TensorView logits;
  TensorView targets;
  TensorView logsumexp;
  TensorView grad_loss;    // A scalar, float32 (float64).
  TensorView grad_logits;  // [N, V], unit column stride, any floating dtype.
  TensorView counted;      // As in CrossEntropyArgs.
  int64_t ignore_index = -100;
  double scale = 1.0;
};

namespace cpu {
absl::Status CrossEntropy(const CrossEntropyArgs& args, const Launch& launch);
absl::Status CrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                                  const Launch& launch);
}  // namespace cpu
namespace cuda {
absl::Status CrossEntropy(const CrossEntropyArgs& args, const Launch& launch);
absl::Status CrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                                  const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<CrossEntropyArgs> kCrossEntropy{
    "CrossEntropy", cpu::CrossEntropy, cuda::CrossEntropy};
inline constexpr Kernel<CrossEntropyBackwardArgs> kCrossEntropyBackward{
    "CrossEntropyBackward", cpu::CrossEntropyBackward,
    cuda::CrossEntropyBackward};

}  // namespace tessera
