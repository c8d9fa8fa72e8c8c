// What a program says about sharding, in one place.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "fsdp/options.h"
#include "fsdp/state_dict_config.h"

namespace tessera {

struct FullyShardedDataParallelPlugin {
  // How to shard; `sharding.fsdp_version` is the version of everything here.
  FullyShardOptions sharding = {};

  // Unset: full for version 1, sharded for version 2; unset configs are made
  // for the type, afresh whenever it changes.
  std::optional<StateDictType> state_dict_type = {};
  std::optional<StateDictConfig> state_dict_config = {};
  std::optional<OptimStateDictConfig> optim_state_dict_config = {};

  // Only rank 0 holds the model's values before it is sharded; modules of the
  // other ranks may be on the meta device, and are never whole.
  bool cpu_ram_efficient_loading = false;

  // Changes the type, and drops configs that were set for the one before.
  void SetStateDictType(StateDictType type) {
    state_dict_type = type;
    state_dict_config.reset();
    optim_state_dict_config.reset();
  }

  // Type and configs together; errors as of MakeStateDictSettings.
  absl::StatusOr<StateDictSettings> StateDict() const {
    const StateDictSettings defaults =
        DefaultStateDictSettings(sharding.fsdp_version);
    return MakeStateDictSettings(sharding.fsdp_version,
                                 state_dict_type.value_or(defaults.type),
                                 state_dict_config, optim_state_dict_config);
  }
};

}  // namespace tessera
