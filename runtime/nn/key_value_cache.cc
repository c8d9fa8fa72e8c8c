#include "runtime/nn/key_value_cache.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

namespace {

// What is cached has the type that the layer computes in, which mixed precision
// decides when it runs.
void MatchType(Tensor& cached, const Tensor& next) {
  if (cached.dtype() == next.dtype()) return;
  const MemoryCategoryGuard guard(MemoryCategory::kData);
  cached = Tensor::Empty(cached.shape(), {next.dtype(), next.device()});
}

}  // namespace

KeysAndValues Extend(LayerCache& cache, const KeysAndValues& next) {
  const int64_t added = next.keys_BTHD.size(1);
  const int64_t length = cache.length + added;
  if (length > cache.keys_BSHD.size(1) ||
      next.keys_BTHD.size(0) != cache.keys_BSHD.size(0)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "KeyValueCache: holds ", cache.keys_BSHD.shape().ToString(),
        " (batch, positions, heads, dim), of which ", cache.length,
        " positions are full; got ", next.keys_BTHD.shape().ToString(),
        " more; make a larger cache")));
  }
  if (cache.length == 0) {
    MatchType(cache.keys_BSHD, next.keys_BTHD);
    MatchType(cache.values_BSHD, next.values_BTHD);
  }
  ops::Copy(next.keys_BTHD, cache.keys_BSHD.Narrow(1, cache.length, added));
  ops::Copy(next.values_BTHD, cache.values_BSHD.Narrow(1, cache.length, added));
  cache.length = length;
  return {cache.keys_BSHD.Narrow(1, 0, length),
          cache.values_BSHD.Narrow(1, 0, length)};
}

KeyValueCache MakeCache(const CacheShape& shape, const TensorOptions& options) {
  MemoryCategoryGuard guard(MemoryCategory::kData);
  KeyValueCache cache;
  cache.capacity = shape.capacity;
  cache.batch = shape.batch;
  const Shape sizes = {shape.batch, shape.capacity, shape.num_heads,
                       shape.head_dim};
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    cache.layers.push_back(
        {Tensor::Empty(sizes, options), Tensor::Empty(sizes, options), 0});
  }
  return cache;
}

}  // namespace tessera
