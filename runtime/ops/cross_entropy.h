// Losses of logits: softmax and negative log-likelihood in one pass.
#pragma once

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // Targets that do not count.
  double scale = 1.0;           // Of the sum over targets that count.
  // int64, of any length; when defined, the scale is divided by the number of
  // its elements that are not ignored: a mean. A mean of nothing is 0.
  Tensor counted = {};
};

// logits [N, V] with unit column stride, targets [N] int64. Writes the scalar
// `loss` (or adds to it) and, if defined, `logsumexp` [N], both float32
// (float64). Throws when a target that counts is outside [0, V).
struct CrossEntropyOutput {
  Tensor loss;
  Tensor logsumexp;
  bool accumulate = false;
};
void CrossEntropyInto(const Tensor& logits, const Tensor& targets,
                      const CrossEntropyOptions& options,
                      const CrossEntropyOutput& output);

// Writes grad_logits [N, V], unit column stride: logits' dtype, or a 16-bit one
// for float32 logits. It may be the memory of the logits, row by row.
struct CrossEntropyGradient {
  Tensor grad_loss;  // Scalar, float32 (float64).
  Tensor grad_logits;
};
void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                          const Tensor& logsumexp,
                          const CrossEntropyOptions& options,
                          const CrossEntropyGradient& gradient);

// Throws unless logits are [N, V] floating and targets [N] int64.
void CheckCrossEntropy(const char* operation, const Tensor& logits,
                       const Tensor& targets);

}  // namespace tessera::ops
