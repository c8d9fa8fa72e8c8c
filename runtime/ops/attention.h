// Scaled dot-product attention.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/attention.h"
#include "runtime/tensor/tensor.h"

namespace tessera::ops {

struct AttentionOptions {
  // Query i of T stands at position p = i + S - T of S keys, so that queries
  // may be the newest of a sequence whose keys are cached. It sees keys up to
  // p; with a sliding window (not 0) only the last that many of them.
  bool causal = true;
  int64_t sliding_window = 0;
  std::optional<double> scale = {};  // 1 / sqrt(D) unless given.
  AttentionDropout dropout = {};     // Of the weights. Dim 0 is the sample.
  // [B, T] int64, contiguous: the first key that each query may see, where a
  // row holds several documents. See AttentionArgs.
  Tensor segment_starts = {};
};

struct AttentionInputs {
  Tensor q;  // [B, T, H, D]
  Tensor k;  // [B, S, G, D], H a multiple of G.
  Tensor v;  // [B, S, G, D]
};

// `logsumexp` [B, H, T], float32 (float64 for float64), is for backward.
struct AttentionResult {
  Tensor out;
  Tensor logsumexp;
};

// out [B, T, H, D] is contiguous. Parts of a fused projection need no copy. A
// query that sees no key gets 0. Throws when shapes or dtypes do not fit.
AttentionResult Attention(const AttentionInputs& inputs,
                          const AttentionOptions& options = {});

struct AttentionGradients {
  Tensor q;
  Tensor k;
  Tensor v;
};

// `forward` is what Attention gave for the same inputs and options.
AttentionGradients AttentionBackward(const AttentionInputs& inputs,
                                     const AttentionResult& forward,
                                     const Tensor& grad_out,
                                     const AttentionOptions& options);

}  // namespace tessera::ops
