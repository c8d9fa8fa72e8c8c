#include "runtime/ops/attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

[[noreturn]] void Refuse(const char* wanted, const Tensor& q, const Tensor& k,
                         const Tensor& v) {
  throw Error(absl::InvalidArgumentError(
      absl::StrCat("Attention: wants ", wanted, "; got q ", q.ToString(),
                   ", k ", k.ToString(), ", v ", v.ToString())));
}

void CheckAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options) {
  if (q.num_dims() != 4 || k.num_dims() != 4 || v.shape() != k.shape()) {
    Refuse("q [B, T, H, D], k and v [B, S, G, D]", q, k, v);
  }
  if (!IsFloating(q.dtype()) || q.dtype() != k.dtype() ||
      k.dtype() != v.dtype()) {
    Refuse("floats of one dtype, so cast", q, k, v);
  }
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3) || k.size(2) == 0 ||
      q.size(2) % k.size(2) != 0) {
    Refuse("equal B and D, and H a multiple of G", q, k, v);
  }
  if (options.sliding_window < 0 ||
      (options.sliding_window > 0 && !options.causal)) {
    Refuse("a sliding window that is positive, with a causal mask", q, k, v);
  }
}

// With the last dim a vector in memory.
Tensor WithVectors(const Tensor& x) {
  return x.strides().back() == 1 || x.size(-1) <= 1 ? x : Contiguous(x);
}

Tensor EmptyLike(const Tensor& x) {
  return Tensor::Empty(x.shape(), {x.dtype(), x.device()});
}

AttentionArgs ArgsOf(const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionResult& result,
                     const AttentionOptions& options) {
  const double dim = static_cast<double>(q.size(3));
  return {ViewOf(q),
          ViewOf(k),
          ViewOf(v),
          ViewOf(result.out),
          ViewOf(result.logsumexp),
          options.scale.value_or(1 / std::sqrt(dim)),
          {options.causal, options.sliding_window}};
}

}  // namespace

AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options) {
  CheckAttention(q, k, v, options);
  const Tensor queries = WithVectors(q);
  const Tensor keys = WithVectors(k);
  const Tensor values = WithVectors(v);
  AttentionResult result;
  result.out = EmptyLike(q);
  result.logsumexp = Tensor::Empty({q.size(0), q.size(2), q.size(1)},
                                   {AccumulateDType(q.dtype()), q.device()});
  Run(kAttention, ArgsOf(queries, keys, values, result, options),
      {&queries, &keys, &values}, {&result.out, &result.logsumexp});
  return result;
}

AttentionGradients AttentionBackward(const Tensor& q, const Tensor& k,
                                     const Tensor& v,
                                     const AttentionResult& forward,
                                     const Tensor& grad_out,
                                     const AttentionOptions& options) {
  CheckAttention(q, k, v, options);
  const Tensor queries = WithVectors(q);
  const Tensor keys = WithVectors(k);
  const Tensor values = WithVectors(v);
  const Tensor grad = WithVectors(grad_out);
  const AttentionGradients result = {EmptyLike(q), EmptyLike(k), EmptyLike(v)};
  Run(kAttentionBackward,
      {ArgsOf(queries, keys, values, forward, options), ViewOf(grad),
       ViewOf(result.q), ViewOf(result.k), ViewOf(result.v)},
      {&queries, &keys, &values, &forward.out, &forward.logsumexp, &grad},
      {&result.q, &result.k, &result.v});
  return result;
}

}  // namespace tessera::ops
