// A table of vectors, one for each id.
#pragma once

#include <cstdint>

#include "runtime/nn/module.h"

namespace tessera {

// "weight" [num_embeddings, dim], normal with deviation `init_stddev` at start.
class Embedding : public Module {
 public:
  Embedding(int64_t num_embeddings, int64_t dim, double init_stddev = 1.0);

  // ids [...], int32 or int64: [..., dim].
  Variable operator()(const Tensor& ids);
  void ResetParameters(const Initializer& initializer) override;

  const Variable& weight() const { return weight_; }

 private:
  const double init_stddev_;
  Variable weight_;
};

}  // namespace tessera
