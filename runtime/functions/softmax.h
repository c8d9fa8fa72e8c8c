// Differentiable softmax.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// Over the last dim of x [..., C].
Variable Softmax(const Variable& x);

}  // namespace tessera::functions
