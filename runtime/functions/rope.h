// Differentiable rotary position embedding.
#pragma once

#include "runtime/autograd/variable.h"
#include "runtime/ops/rope.h"

namespace tessera::functions {

using ops::RopePositions;

// Of x [B, T, H, D]; the tables are no variables. See ops::Rope.
Variable Rope(const Variable& x, const RopePositions& positions);

}  // namespace tessera::functions
