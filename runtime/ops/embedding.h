// Rows of a table picked by ids.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// ids [...] int32 or int64, weight [V, D]: [..., D] of weight's dtype. Throws
// when an id is outside [0, V), naming it and its position (in the queued mode
// of the compute stream the error comes at its next Synchronize).
Tensor Embedding(const Tensor& ids, const Tensor& weight);

// Adds rows of grad_y [..., D] to the rows of grad_weight [V, D] (contiguous,
// float32 or float64), which is zeroed first unless `accumulate`.
void EmbeddingBackward(const Tensor& ids, const Tensor& grad_y,
                       const Tensor& grad_weight, bool accumulate);

}  // namespace tessera::ops
