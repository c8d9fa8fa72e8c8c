// Reductions of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/reduce.h"

namespace tessera::cuda {

NO_CUDA(Reduce)
NO_CUDA(AddExact)
NO_CUDA(ExactToDouble)

}  // namespace tessera::cuda
