// Differentiable scaled dot-product attention.
#pragma once

#include "runtime/autograd/variable.h"
#include "runtime/ops/attention.h"

namespace tessera::functions {

using ops::AttentionOptions;

// q [B, T, H, D], k and v [B, S, G, D]; the result is [B, T, H, D]. See
// ops::Attention.
Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   const AttentionOptions& options = {});

}  // namespace tessera::functions
