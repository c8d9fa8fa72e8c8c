// An optimizer's groups as torch writes them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// A dictionary a group: its options under torch's names, with all that torch's
// own AdamW or SGD has there, and "params", the names of its parameters.
std::vector<PickleDict> ParamGroupsOf(const Optimizer& optimizer);

// The options of each of the optimizer's groups from saved groups, which may be
// in another order. Fields that are unknown are passed over, and those that
// are missing keep the optimizer's value. kFailedPrecondition when a group's
// parameters are not in one saved group, or a field is no number.
absl::StatusOr<std::vector<OptimizerOptions>> OptionsOfParamGroups(
    const Optimizer& optimizer, const std::vector<PickleDict>& groups);

// As text, to tell other ranks; exact.
std::string SerializeOptions(const std::vector<OptimizerOptions>& options);
absl::StatusOr<std::vector<OptimizerOptions>> ParseOptions(
    const std::string& text);

}  // namespace tessera
