#include "runtime/ops/random.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

void FillRandom(const char* operation, const Tensor& x, FillRandomArgs args) {
  const bool any_dtype = args.distribution == Distribution::kBernoulli;
  if (!x.IsContiguous() || !(any_dtype || IsFloating(x.dtype()))) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        operation, ": wants a contiguous ", any_dtype ? "" : "floating ",
        "tensor, got ", x.ToString(), x.IsContiguous() ? "" : " with gaps")));
  }
  args.x = ViewOf(x);
  Run(kFillRandom, args, {}, {&x});
}

}  // namespace

uint64_t StreamOf(const std::string& name) {
  return XXH3_64bits(name.data(), name.size());
}

void FillUniform(const Tensor& x, RandomKey key, double low, double high,
                 int64_t element_offset) {
  FillRandom("FillUniform", x,
             {.key = key,
              .distribution = Distribution::kUniform,
              .a = low,
              .b = high,
              .element_offset = element_offset});
}

void FillNormal(const Tensor& x, RandomKey key, double mean, double stddev,
                int64_t element_offset) {
  FillRandom("FillNormal", x,
             {.key = key,
              .distribution = Distribution::kNormal,
              .a = mean,
              .b = stddev,
              .element_offset = element_offset});
}

void FillBernoulli(const Tensor& x, RandomKey key, double probability,
                   int64_t element_offset) {
  FillRandom("FillBernoulli", x,
             {.key = key,
              .distribution = Distribution::kBernoulli,
              .a = probability,
              .element_offset = element_offset});
}

}  // namespace tessera::ops
