// Rows of a table picked by ids, and their gradient.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// y[i, :] = weight[ids[i], :]. An id outside [0, V) is an error that names its
// position.
struct EmbeddingArgs {
  TensorView ids;     // [N], int32 or int64.
  TensorView weight;  // [V, D], unit column stride, any dtype.
  TensorView y;       // [N, D], contiguous, of weight's dtype.
};

// grad_weight[ids[i], :] += grad_y[i, :], in the order of i whatever the number
// of threads; without `accumulate` grad_weight is zeroed first.
struct EmbeddingBackwardArgs {
  TensorView ids;
  TensorView grad_y;       // [N, D], unit column stride.
  TensorView grad_weight;  // [V, D], contiguous, float32 (float64).
  bool accumulate = false;
};

namespace cpu {
absl::Status Embedding(const EmbeddingArgs& args, const Launch& launch);
absl::Status EmbeddingBackward(const EmbeddingBackwardArgs& args,
                               const Launch& launch);
}  // namespace cpu
namespace cuda {
absl::Status Embedding(const EmbeddingArgs& args, const Launch& launch);
absl::Status EmbeddingBackward(const EmbeddingBackwardArgs& args,
                               const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<EmbeddingArgs> kEmbedding{"Embedding", cpu::Embedding,
                                                  cuda::Embedding};
inline constexpr Kernel<EmbeddingBackwardArgs> kEmbeddingBackward{
    "EmbeddingBackward", cpu::EmbeddingBackward, cuda::EmbeddingBackward};

}  // namespace tessera
