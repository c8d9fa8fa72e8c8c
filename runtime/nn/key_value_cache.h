// Keys and values of positions that a model has seen, for generation.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace tessera {

// B sequences, S capacity, H key and value heads, D their dim.
struct LayerCache {
  Tensor keys_BSHD;
  Tensor values_BSHD;
  int64_t length = 0;  // Positions that hold something.
};

// What one layer attends to.
struct KeysAndValues {
  Tensor keys_BTHD;
  Tensor values_BTHD;
};

// Writes the next positions into the cache and gives views of all so far.
// Throws when they do not fit.
KeysAndValues Extend(LayerCache& cache, const KeysAndValues& next);

struct KeyValueCache {
  std::vector<LayerCache> layers;
  int64_t length = 0;  // Positions seen by the whole model.
  int64_t capacity = 0;
  int64_t batch = 0;
};

struct CacheShape {
  int64_t num_layers;
  int64_t batch;
  int64_t capacity;
  int64_t num_heads;
  int64_t head_dim;
};
KeyValueCache MakeCache(const CacheShape& shape, const TensorOptions& options);

}  // namespace tessera
