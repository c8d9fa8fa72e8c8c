// An optimizer that was made for a plain model goes on with the sharded one.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "fsdp/fully_shard.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// By the name that the optimizer knows the parameter under: what takes its
// place. A name is unique, whatever memory a parameter has or lacks.
using ParameterMapping = std::map<std::string, ShardedParameter>;

ParameterMapping MappingTo(const FullyShardedModule& model);

// `optimizer` updates what this rank keeps of each parameter. Order, groups,
// options and steps stay; states (moments) move along: of a state of the whole
// parameter, each rank keeps its part. A parameter that the mapping lacks is an
// error (kInvalidArgument, naming all of them), as is a state of another shape;
// nothing is changed then. No communication.
absl::Status Fsdp2SwitchOptimizerParameters(Optimizer& optimizer,
                                            const ParameterMapping& mapping);

}  // namespace tessera
