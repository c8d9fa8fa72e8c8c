// Scaled dot-product attention in tiles: scores are never stored whole.
#pragma once

#include "kernels/dropout.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// Which keys a query sees. Queries are the last T of S positions: query i
// stands at position p = i + S - T.
struct AttentionMask {
  bool causal = true;          // Keys up to p.
  int64_t sliding_window = 0;  // If not 0, and causal: keys after p - window.
};

// Dropout of the weights, after the softmax: a weight counts 0 with
// `probability`, else 1 / (1 - probability) times. Row b is sample
// key.first_sample + b * key.sample_stride; the weight of head h, query i and
// key j is element h * 2^50 + i * 2^26 + j of the sample's random stream (see
// DropoutKey), whatever the other sizes are. Nothing is stored: backward makes
// the same factors again.
struct AttentionDropout {
  double probability = 0;  // In [0, 1).
  DropoutKey key = {};
};

// What the numbers of an element have room for.
inline constexpr int64_t kMaxDropoutHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxDropoutQueries = int64_t{1} << 24;
inline constexpr int64_t kMaxDropoutKeys = int64_t{1} << 26;

// B batch, T queries, S keys, H heads, G heads of keys (H is a multiple of G;
// consecutive queries' heads share one), D head dimension.
//
// `segment_starts`, for rows that hold several documents, each of which attends
// to itself alone: query i sees no key before segment_starts[b, i]. They never
// fall from one query to the next, and want a causal mask.
//
// out = dropout(softmax(scale q k^T)) v over the keys that each query sees; a
// query that sees none gets 0. All of one floating type, any strides but that
// D's is 1. Products and sums are in float32 (float64 for float64).
//
// Results do not depend on the number of threads.
struct AttentionArgs {
  TensorView q;          // [B, T, H, D]
  TensorView k;          // [B, S, G, D]
  TensorView v;          // [B, S, G, D]
  TensorView out;        // [B, T, H, D]
  TensorView logsumexp;  // [B, H, T], contiguous, of AccumulateDType.
  double scale = 1;
  AttentionMask mask = {};
  AttentionDropout dropout = {};
  TensorView segment_starts = {};  // [B, T], int64, contiguous; or undefined.
};

// Gradients, overwritten, from what forward was given and gave.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  TensorView grad_out;  // [B, T, H, D]
  TensorView grad_q;    // [B, T, H, D]
  TensorView grad_k;    // [B, S, G, D]
  TensorView grad_v;    // [B, S, G, D]
};

namespace cpu {
absl::Status Attention(const AttentionArgs& args, const Launch& launch);
absl::Status AttentionBackward(const AttentionBackwardArgs& args,
                               const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Attention(const AttentionArgs& args, const Launch& launch);
absl::Status AttentionBackward(const AttentionBackwardArgs& args,
                               const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<AttentionArgs> kAttention{"Attention", cpu::Attention,
                                                  cuda::Attention};
inline constexpr Kernel<AttentionBackwardArgs> kAttentionBackward{
    "AttentionBackward", cpu::AttentionBackward, cuda::AttentionBackward};

}  // namespace tessera
