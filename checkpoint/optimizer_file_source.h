// States of an optimizer in files, of which each rank reads its part.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/optimizer_state_dict.h"

namespace tessera {

// A full dictionary in a file of torch.save: {"state": {NAME: {STATE: tensor}},
// "param_groups": [...]}. Steps may be tensors or numbers.
absl::StatusOr<std::unique_ptr<OptimizerStateSource>> OpenOptimizerFile(
    const std::string& path);

// A torch distributed checkpoint of {"optimizer": the same}.
absl::StatusOr<std::unique_ptr<OptimizerStateSource>> OpenOptimizerFolder(
    const std::string& folder);

// "param_groups" of a dictionary; kFailedPrecondition when it is no list of
// dictionaries.
absl::StatusOr<std::vector<PickleDict>> GroupsIn(const PickleValue& dict);

}  // namespace tessera
