// Lists of tensors in a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/multi_tensor.h"

namespace tessera::cuda {

NO_CUDA(MultiScale)
NO_CUDA(MultiFill)
NO_CUDA(MultiCopy)

}  // namespace tessera::cuda
