// A differentiable function that the library does not have, with its kernel.
#pragma once

#include "runtime/autograd/variable.h"

namespace embedding {

// max(x, 0)^2, of float32.
tessera::Variable SquaredRelu(const tessera::Variable& x);

}  // namespace embedding
