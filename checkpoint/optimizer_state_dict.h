// The state dictionary of a sharded model's optimizer: full or sharded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/param_groups.h"
#include "checkpoint/row_parts.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict_type.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// States by the names of the plain model's parameters: of each its moments
// ("exp_avg", ...), whole or this rank's rows, and "step", a float32 without
// dims, in the memory of the host. Frozen parameters have none. A trained one
// that never had a gradient has step 0 and, for AdamW, zeros: what torch makes
// of it.
struct OptimizerStateDict {
  struct Entry {
    std::string parameter;
    std::string state;
    TensorRows rows;
  };

  StateDictType type = StateDictType::kFullStateDict;
  std::vector<Entry> entries;
  std::vector<PickleDict> param_groups;
};

// Of the type that is set for the module. Collective. Full: with rank0_only
// the other ranks have no entry and no group. Sharded and local: rows, as in
// the model's sharded dictionary. An error of one rank, say, for lack of
// memory, is returned on all.
absl::StatusOr<OptimizerStateDict> GetOptimizerStateDict(
    FullyShardedModule& module, const Optimizer& optimizer);

// Saved states of an optimizer, in memory or in files.
class OptimizerStateSource {
 public:
  virtual ~OptimizerStateSource() = default;

  // Whole shapes by parameter and state, the same on all ranks.
  using Listing = std::map<std::string, std::map<std::string, Shape>>;
  const Listing& listing() const { return listing_; }

  // Called by all ranks in the same order, behind errors too. May throw, but
  // not while other ranks wait.
  virtual absl::StatusOr<double> ReadStep(const std::string& parameter) = 0;
  // What this rank keeps of it: parameter.length elements, any floating type.
  virtual absl::StatusOr<Tensor> ReadPart(const ShardedParameter& parameter,
                                          const std::string& state) = 0;
  // Called by rank 0 alone.
  virtual absl::StatusOr<std::vector<PickleDict>> ReadGroups() = 0;

 protected:
  Listing listing_;
};

// Sets states and options of an optimizer, which may be fresh. Collective. One
// error on all ranks, before anything is changed, that lists all names: a
// trained parameter without a state, a state of another shape, a parameter that
// the optimizer does not have, options that it does not support. A disk that
// fails later, or a lack of memory, leaves states that are neither. Beside the
// optimizer's states the memory of one of them is needed.
absl::Status LoadOptimizerStates(FullyShardedModule& module,
                                 Optimizer& optimizer,
                                 OptimizerStateSource& source);

// The same from a dictionary of the type that is set: a full one of rank 0
// where that is configured, else of each rank its own.
absl::Status LoadOptimizerStateDict(FullyShardedModule& module,
                                    Optimizer& optimizer,
                                    const OptimizerStateDict& dict);

}  // namespace tessera
