// A differentiable look-up of rows.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// ids [...] int32 or int64, weight [V, D]: [..., D]. Gradients of rows are
// added in the order of the ids. Throws as ops::Embedding.
Variable Embedding(const Tensor& ids, const Variable& weight);

}  // namespace tessera::functions
