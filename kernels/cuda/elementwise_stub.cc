// Elementwise kernels of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/elementwise.h"

namespace tessera::cuda {

NO_CUDA(Copy)
NO_CUDA(Fill)
NO_CUDA(Binary)
NO_CUDA(Unary)
NO_CUDA(UnaryBackward)
NO_CUDA(Affine)
NO_CUDA(Accumulate)
NO_CUDA(SwiGlu)
NO_CUDA(SwiGluBackward)
NO_CUDA(Where)

}  // namespace tessera::cuda
