// Norms of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/norm.h"

namespace tessera::cuda {

NO_CUDA(LayerNorm)
NO_CUDA(LayerNormBackward)
NO_CUDA(RmsNorm)
NO_CUDA(RmsNormBackward)

}  // namespace tessera::cuda
