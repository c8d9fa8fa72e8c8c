// Linked where there is no CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/rope.h"

namespace tessera::cuda {
NO_CUDA(Rope)
}  // namespace tessera::cuda
