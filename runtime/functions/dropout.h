// Dropout whose mask is a function of where in training it is drawn.
#pragma once

#include <string>

#include "runtime/autograd/variable.h"
#include "runtime/ops/dropout.h"

namespace tessera::functions {

// In training: x / (1 - probability) for the elements that are kept, else 0.
// x [B, ...]: dim 0 is the sample; 0 <= probability < 1.
//
// The mask follows from this thread's RandomContext (seed, step, micro-batch,
// the global sample of each row), `module_name`, how often the module has
// drawn in this context, and the element inside the sample. It is not stored:
// backward makes it again.
Variable Dropout(const Variable& x, double probability,
                 const std::string& module_name);

// The key of that mask, for functions that drop inside. Counts as a draw of
// the module.
DropoutKey NextDropoutKey(const std::string& module_name);

}  // namespace tessera::functions
