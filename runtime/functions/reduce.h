// Differentiable sums and means.
#pragma once

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// Over all elements: a scalar of x's dtype.
Variable Sum(const Variable& x);
Variable Mean(const Variable& x);
// Along one dim, which `keep_dim` keeps with size 1.
Variable Sum(const Variable& x, int dim, bool keep_dim = false);
Variable Mean(const Variable& x, int dim, bool keep_dim = false);

}  // namespace tessera::functions
