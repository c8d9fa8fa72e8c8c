#include "runtime/nn/embedding.h"

#include "runtime/functions/embedding.h"

namespace tessera {

Embedding::Embedding(int64_t num_embeddings, int64_t dim, double init_stddev)
    : Module("Embedding"), init_stddev_(init_stddev) {
  weight_ = RegisterParameter("weight", {num_embeddings, dim});
}

Variable Embedding::operator()(const Tensor& ids) {
  return Call(
      [this](const Tensor& list) {
        return functions::Embedding(list, weight_);
      },
      ids);
}

void Embedding::ResetParameters(const Initializer& initializer) {
  initializer.Normal(weight_, "weight", 0.0, init_stddev_);
}

}  // namespace tessera
