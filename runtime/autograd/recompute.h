// Activation checkpointing: forward keeps its inputs only, backward runs it
// again.
#pragma once

#include <cstdint>
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

// A number of the outermost Recompute that is running its function for the
// first time on this thread, without recording, though backward will come to
// what runs now; 0 outside.
int64_t RecomputeScope();

}  // namespace tessera
