// Linked where there is no CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/matmul.h"

namespace tessera::cuda {
NO_CUDA(MatMul)
NO_CUDA(BiasGradient)
}  // namespace tessera::cuda
