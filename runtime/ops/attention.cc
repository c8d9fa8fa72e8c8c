#include "runtime/ops/attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

[[noreturn]] void Refuse(const char* wanted, const AttentionInputs& inputs) {
  throw Error(absl::InvalidArgumentError(
      absl::StrCat("Attention: wants ", wanted, "; got q ", inputs.q.ToString(),
                   ", k ", inputs.k.ToString(), ", v ", inputs.v.ToString())));
}

void CheckAttention(const AttentionInputs& inputs,
                    const AttentionOptions& options) {
  const Tensor &q = inputs.q, &k = inputs.k, &v = inputs.v;
  if (q.num_dims() != 4 || k.num_dims() != 4 || v.shape() != k.shape()) {
    Refuse("q [B, T, H, D], k and v [B, S, G, D]", inputs);
  }
  if (!IsFloating(q.dtype()) || q.dtype() != k.dtype() ||
      k.dtype() != v.dtype()) {
    Refuse("floats of one dtype, so cast", inputs);
  }
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3) || k.size(2) == 0 ||
      q.size(2) % k.size(2) != 0) {
    Refuse("equal B and D, and H a multiple of G", inputs);
  }
  if (options.sliding_window < 0 ||
      (options.sliding_window > 0 && !options.causal)) {
    Refuse("a sliding window that is positive, with a causal mask", inputs);
  }
  const Tensor& starts = options.segment_starts;
  if (starts.defined() &&
      (starts.shape() != Shape{q.size(0), q.size(1)} || !options.causal ||
       starts.dtype() != DType::kInt64 || !starts.IsContiguous())) {
    Refuse("contiguous int64 segment_starts [B, T], with a causal mask",
           inputs);
  }
  const double probability = options.dropout.probability;
  if (!(probability >= 0 && probability < 1)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Attention: wants a probability of dropout in [0, 1), got ",
        probability)));
  }
}

// With the last dim a vector in memory.
Tensor WithVectors(const Tensor& x) {
  return x.strides().back() == 1 || x.size(-1) <= 1 ? x : Contiguous(x);
}

AttentionInputs WithVectors(const AttentionInputs& inputs) {
  return {WithVectors(inputs.q), WithVectors(inputs.k), WithVectors(inputs.v)};
}

Tensor EmptyLike(const Tensor& x) {
  return Tensor::Empty(x.shape(), {x.dtype(), x.device()});
}

AttentionArgs ArgsOf(const AttentionInputs& inputs,
                     const AttentionResult& result,
                     const AttentionOptions& options) {
  const double dim = static_cast<double>(inputs.q.size(3));
  return {ViewOf(inputs.q),
          ViewOf(inputs.k),
          ViewOf(inputs.v),
          ViewOf(result.out),
          ViewOf(result.logsumexp),
          options.scale.value_or(1 / std::sqrt(dim)),
          {options.causal, options.sliding_window},
          options.dropout,
          ViewOf(options.segment_starts)};
}

}  // namespace

AttentionResult Attention(const AttentionInputs& inputs,
                          const AttentionOptions& options) {
  CheckAttention(inputs, options);
  const AttentionInputs from = WithVectors(inputs);
  const Tensor& q = inputs.q;
  AttentionResult result;
  result.out = EmptyLike(q);
  result.logsumexp = Tensor::Empty({q.size(0), q.size(2), q.size(1)},
                                   {AccumulateDType(q.dtype()), q.device()});
  Run(kAttention, ArgsOf(from, result, options),
      {&from.q, &from.k, &from.v, &options.segment_starts},
      {&result.out, &result.logsumexp});
  return result;
}

AttentionGradients AttentionBackward(const AttentionInputs& inputs,
                                     const AttentionResult& forward,
                                     const Tensor& grad_out,
                                     const AttentionOptions& options) {
  CheckAttention(inputs, options);
  const AttentionInputs from = WithVectors(inputs);
  const Tensor grad = WithVectors(grad_out);
  AttentionGradients result = {EmptyLike(inputs.q), EmptyLike(inputs.k),
                               EmptyLike(inputs.v)};
  Run(kAttentionBackward,
      {ArgsOf(from, forward, options), ViewOf(grad), ViewOf(result.q),
       ViewOf(result.k), ViewOf(result.v)},
      {&from.q, &from.k, &from.v, &forward.out, &forward.logsumexp, &grad,
       &options.segment_starts},
      {&result.q, &result.k, &result.v});
  return result;
}

}  // namespace tessera::ops
