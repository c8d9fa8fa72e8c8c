// Chooses the form of a sharded model's state dictionaries, for good or for a
// scope.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict_config.h"

namespace tessera {

// From now on the dictionaries of `model` and of its optimizer are of `type`.
// Configs that are not given are made afresh for this type; those of the type
// before are never kept. Returns what was set before. On an error, as of
// MakeStateDictSettings, nothing changes. No communication: every rank sets the
// same.
absl::StatusOr<StateDictSettings> SetStateDictType(
    FullyShardedModule& model, StateDictType type,
    const std::optional<StateDictConfig>& config = {},
    const std::optional<OptimStateDictConfig>& optim_config = {});

// SetStateDictType for a scope, however that ends: by an exception too, what
// was set before is set again. Throws the errors of SetStateDictType.
class StateDictTypeScope {
 public:
  StateDictTypeScope(
      FullyShardedModule& model, StateDictType type,
      const std::optional<StateDictConfig>& config = {},
      const std::optional<OptimStateDictConfig>& optim_config = {});
  ~StateDictTypeScope();
  StateDictTypeScope(const StateDictTypeScope&) = delete;
  StateDictTypeScope& operator=(const StateDictTypeScope&) = delete;

 private:
  FullyShardedModule& model_;
  const StateDictSettings previous_;
};

}  // namespace tessera
