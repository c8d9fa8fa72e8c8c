// Cross entropy of a build without CUDA.
#include "kernels/cross_entropy.h"
#include "kernels/cuda/stub.h"

namespace tessera::cuda {

NO_CUDA(CrossEntropy)
NO_CUDA(CrossEntropyBackward)

}  // namespace tessera::cuda
