// Which form a model's state dictionary takes, and where it is kept.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"

namespace tessera {

enum class StateDictType {
  kFullStateDict = 1,    // Whole tensors.
  kLocalStateDict = 2,   // Version 1: each unit's part as it lies in memory.
  kShardedStateDict = 3  // Of every tensor this rank's rows.
};

// "FULL_STATE_DICT" in any case, or "1" to "3".
absl::StatusOr<StateDictType> ParseStateDictType(const std::string& text);
const char* StateDictTypeName(StateDictType type);

// offload_to_cpu: tensors are copies in the memory of the host. rank0_only:
// the other ranks take part in the gathers and get an empty dictionary.
struct FullStateDictConfig {
  bool offload_to_cpu = false;
  bool rank0_only = false;
  friend bool operator==(const FullStateDictConfig&,
                         const FullStateDictConfig&) = default;
};
struct LocalStateDictConfig {
  bool offload_to_cpu = false;
  friend bool operator==(const LocalStateDictConfig&,
                         const LocalStateDictConfig&) = default;
};
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
  friend bool operator==(const ShardedStateDictConfig&,
                         const ShardedStateDictConfig&) = default;
};
struct FullOptimStateDictConfig {
  bool offload_to_cpu = true;
  bool rank0_only = false;
  friend bool operator==(const FullOptimStateDictConfig&,
                         const FullOptimStateDictConfig&) = default;
};
struct LocalOptimStateDictConfig {
  bool offload_to_cpu = false;
  friend bool operator==(const LocalOptimStateDictConfig&,
                         const LocalOptimStateDictConfig&) = default;
};
struct ShardedOptimStateDictConfig {
  bool offload_to_cpu = true;
  friend bool operator==(const ShardedOptimStateDictConfig&,
                         const ShardedOptimStateDictConfig&) = default;
};

using StateDictConfig = std::variant<FullStateDictConfig, LocalStateDictConfig,
                                     ShardedStateDictConfig>;
using OptimStateDictConfig =
    std::variant<FullOptimStateDictConfig, LocalOptimStateDictConfig,
                 ShardedOptimStateDictConfig>;

struct StateDictSettings {
  StateDictType type = StateDictType::kShardedStateDict;
  StateDictConfig config = ShardedStateDictConfig();
  OptimStateDictConfig optim_config = ShardedOptimStateDictConfig();
  friend bool operator==(const StateDictSettings&,
                         const StateDictSettings&) = default;
};

// `type` with the configs that are given, and fresh ones of this type for the
// others: full ones offload and are for rank 0 alone, sharded ones offload,
// local ones stay where they are. kInvalidArgument for a config of another
// type, and for local dictionaries with version 2.
absl::StatusOr<StateDictSettings> MakeStateDictSettings(
    int fsdp_version, StateDictType type,
    const std::optional<StateDictConfig>& config = {},
    const std::optional<OptimStateDictConfig>& optim_config = {});
// What a model begins with: full for version 1, sharded for version 2.
StateDictSettings DefaultStateDictSettings(int fsdp_version);

}  // namespace tessera
