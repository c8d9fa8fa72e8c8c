// Linked where there is no CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/softmax.h"

namespace tessera::cuda {
NO_CUDA(Softmax)
NO_CUDA(SoftmaxBackward)
}  // namespace tessera::cuda
