// Embeddings of a build without CUDA.
#include "kernels/cuda/stub.h"
#include "kernels/embedding.h"

namespace tessera::cuda {

NO_CUDA(Embedding)
NO_CUDA(EmbeddingBackward)

}  // namespace tessera::cuda
