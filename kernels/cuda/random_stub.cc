// Random numbers of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/random.h"

namespace tessera::cuda {

NO_CUDA(FillRandom)

}  // namespace tessera::cuda
