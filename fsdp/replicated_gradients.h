// Gradients of parameters that are kept out of sharding.
#pragma once

#include <vector>

#include "fsdp/sharding_context.h"
#include "runtime/autograd/variable.h"

namespace tessera {

// The mean over all ranks, of those of `parameters` that any rank has a
// gradient of; a rank without one adds zeros. One collective.
void ReduceReplicatedGradients(std::vector<Variable>& parameters,
                               const ShardingContext& context);

}  // namespace tessera
