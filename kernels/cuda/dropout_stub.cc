// Dropout of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/dropout.h"

namespace tessera::cuda {

NO_CUDA(Dropout)

}  // namespace tessera::cuda
