// Optimizer steps of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/optimizer.h"

namespace tessera::cuda {

NO_CUDA(AdamW)
NO_CUDA(Sgd)
NO_CUDA(Unscale)

}  // namespace tessera::cuda
