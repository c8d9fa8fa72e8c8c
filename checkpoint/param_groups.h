// An optimizer's groups as torch writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// Which of torch's optimizers one of ours is.
enum class TorchOptimizer { kAdamW, kSgd, kNone };
TorchOptimizer TorchOptimizerOf(const Optimizer& optimizer);

// A dictionary a group: its options under torch's names, with all that torch's
// own AdamW or SGD has there (every option, of another optimizer), and
// "params", the names of its parameters.
std::vector<PickleDict> ParamGroupsOf(const Optimizer& optimizer);

// The options of each of the optimizer's groups from saved groups, which may be
// in another order. Fields that are unknown are passed over, and those that
// are missing keep the optimizer's value. kFailedPrecondition, that names
// group, field and value, when a group's parameters are not in one saved group,
// a field is no number, or it asks for another update than ours: amsgrad,
// maximize, weight decay that is not decoupled in AdamW, nesterov in Sgd where
// it is without effect.
absl::StatusOr<std::vector<OptimizerOptions>> OptionsOfParamGroups(
    const Optimizer& optimizer, const std::vector<PickleDict>& groups);

// To tell other ranks; exact.
nlohmann::json OptionsToJson(const std::vector<OptimizerOptions>& options);
std::vector<OptimizerOptions> OptionsFromJson(const nlohmann::json& json);

}  // namespace tessera
