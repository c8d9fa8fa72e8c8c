#include "fsdp/state_dict_type.h"

#include "kernels/status.h"

namespace tessera {

absl::StatusOr<StateDictSettings> SetStateDictType(
    FullyShardedModule& model, StateDictType type,
    const std::optional<StateDictConfig>& config,
    const std::optional<OptimStateDictConfig>& optim_config) {
  ASSIGN_OR_RETURN(const StateDictSettings settings,
                   MakeStateDictSettings(model.options().fsdp_version, type,
                                         config, optim_config));
  const StateDictSettings previous = model.state_dict_settings();
  model.set_state_dict_settings(settings);
  return previous;
}

StateDictTypeScope::StateDictTypeScope(
    FullyShardedModule& model, StateDictType type,
    const std::optional<StateDictConfig>& config,
    const std::optional<OptimStateDictConfig>& optim_config)
    : model_(model),
      previous_(OrThrow(SetStateDictType(model, type, config, optim_config))) {}

StateDictTypeScope::~StateDictTypeScope() {
  model_.set_state_dict_settings(previous_);
}

}  // namespace tessera
