// Losses of language models: cross entropy of logits, or of hidden states and
// the head's weight with the logits made and used up inside.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// The loss is the sum over targets that are not `ignore_index`, divided by
// `divisor`, or by their number when there is none (0 if none counts). A
// divisor that is not above 0 and finite throws.
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  std::optional<double> divisor = {};
};

// logits [N, V] floating, targets [N] int64; a scalar, float32 (float64 for
// float64). Throws when a target that counts is outside [0, V).
Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  CrossEntropyOptions loss = {};
  // Logits of one forward are kept for backward, which turns them into their
  // gradient in place, up to this many bytes. Larger ones are made a chunk of
  // rows at a time, once in forward and again in backward.
  int64_t max_logits_bytes = int64_t{256} << 20;
  int64_t chunk_bytes = int64_t{16} << 20;
};

// CrossEntropy(hidden weight^T, targets) with float32 logits (float64 for
// float64) that are never stored twice: hidden [N, D], weight [V, D] of one
// dtype, targets [N] int64.
Variable LinearCrossEntropy(const Variable& hidden, const Variable& weight,
                            const Tensor& targets,
                            const LinearCrossEntropyOptions& options = {});

}  // namespace tessera::functions
