// Linked where there is no CUDA.
#include "kernels/attention.h"
#include "kernels/cuda/stub.h"

namespace tessera::cuda {
NO_CUDA(Attention)
NO_CUDA(AttentionBackward)
}  // namespace tessera::cuda
