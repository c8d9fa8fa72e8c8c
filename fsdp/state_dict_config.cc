#include "fsdp/state_dict_config.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr StateDictType kTypes[] = {StateDictType::kFullStateDict,
                                    StateDictType::kLocalStateDict,
                                    StateDictType::kShardedStateDict};

// Where configs of `type` stand in their variants.
size_t ConfigIndex(StateDictType type) { return static_cast<size_t>(type) - 1; }

StateDictConfig FreshConfig(StateDictType type) {
  switch (type) {
    case StateDictType::kFullStateDict:
      return FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true};
    case StateDictType::kLocalStateDict:
      return LocalStateDictConfig();
    case StateDictType::kShardedStateDict:
      break;
  }
  return ShardedStateDictConfig{.offload_to_cpu = true};
}

OptimStateDictConfig FreshOptimConfig(StateDictType type) {
  switch (type) {
    case StateDictType::kFullStateDict:
      return FullOptimStateDictConfig{.offload_to_cpu = true,
                                      .rank0_only = true};
    case StateDictType::kLocalStateDict:
      return LocalOptimStateDictConfig();
    case StateDictType::kShardedStateDict:
      break;
  }
  return ShardedOptimStateDictConfig{.offload_to_cpu = true};
}

absl::Status CheckConfig(StateDictType type, size_t index, const char* what) {
  if (index == ConfigIndex(type)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "state dict: ", StateDictTypeName(type), " wants a ", what,
      " of its own type, got one of ", StateDictTypeName(kTypes[index]),
      "; leave it out to have one made"));
}

}  // namespace

absl::StatusOr<StateDictType> ParseStateDictType(const std::string& text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  for (const StateDictType type : kTypes) {
    if (upper == StateDictTypeName(type) ||
        text == std::to_string(static_cast<int>(type))) {
      return type;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "state dict: type \"", text,
      "\" is none of FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT, 1, "
      "2, 3"));
}

const char* StateDictTypeName(StateDictType type) {
  switch (type) {
    case StateDictType::kFullStateDict:
      return "FULL_STATE_DICT";
    case StateDictType::kLocalStateDict:
      return "LOCAL_STATE_DICT";
    case StateDictType::kShardedStateDict:
      break;
  }
  return "SHARDED_STATE_DICT";
}

absl::StatusOr<StateDictSettings> MakeStateDictSettings(
    int fsdp_version, StateDictType type,
    const std::optional<StateDictConfig>& config,
    const std::optional<OptimStateDictConfig>& optim_config) {
  if (type == StateDictType::kLocalStateDict && fsdp_version != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state dict: LOCAL_STATE_DICT is for version 1, the model is sharded "
        "with version ",
        fsdp_version, "; use SHARDED_STATE_DICT"));
  }
  const StateDictSettings settings = {
      type, config.value_or(FreshConfig(type)),
      optim_config.value_or(FreshOptimConfig(type))};
  RETURN_IF_ERROR(CheckConfig(type, settings.config.index(), "config"));
  RETURN_IF_ERROR(CheckConfig(type, settings.optim_config.index(),
                              "config of the optimizer"));
  return settings;
}

StateDictSettings DefaultStateDictSettings(int fsdp_version) {
  const StateDictType type = fsdp_version == 1
                                 ? StateDictType::kFullStateDict
                                 : StateDictType::kShardedStateDict;
  return {type, FreshConfig(type), FreshOptimConfig(type)};
}

}  // namespace tessera
