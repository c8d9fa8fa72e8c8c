// Differentiable scaled dot-product attention.
#pragma once

#include <string>

#include "runtime/autograd/variable.h"
#include "runtime/ops/attention.h"

namespace tessera::functions {

using ops::AttentionOptions;

// Dropout of a module's weights: with `probability`, and the mask that the
// module draws next (see Dropout, which says what it depends on).
AttentionDropout NextAttentionDropout(double probability,
                                      const std::string& module_name);

// q [B, T, H, D], k and v [B, S, G, D]; the result is [B, T, H, D]. See
// ops::Attention.
Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   const AttentionOptions& options = {});

}  // namespace tessera::functions
