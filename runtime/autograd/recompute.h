// Activation checkpointing: forward keeps its inputs only, backward runs it
// again.
#pragma once

#include <functional>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

// f(inputs), of which nothing is kept for backward but `inputs`. Backward runs
// `f` once more, with the random state that it had (so dropout is the same),
// and goes on through what that records. Gradients have the bits that they have
// without recomputation.
//
// `f` must give the same values again: what it reads beyond its inputs may not
// change between forward and backward, and whatever needs a gradient and is no
// leaf must be among its inputs. Gradients of leaves that it uses arrive while
// it runs again.
std::vector<Variable> Recompute(
    const std::function<std::vector<Variable>(const std::vector<Variable>&)>& f,
    const std::vector<Variable>& inputs);
Variable Recompute(const std::function<Variable(const Variable&)>& f,
                   const Variable& input);

}  // namespace tessera
