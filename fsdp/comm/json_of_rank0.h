// Nested values that rank 0 tells the others.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// What `make`, which rank 0 alone calls, returns there; an error of it, or an
// exception, is the same error on all ranks. Numbers are exact, texts may hold
// any bytes. Called by all ranks; blocks.
absl::StatusOr<nlohmann::json> JsonOfRank0(
    Communicator& world,
    const std::function<absl::StatusOr<nlohmann::json>()>& make,
    const std::string& what);

}  // namespace tessera
