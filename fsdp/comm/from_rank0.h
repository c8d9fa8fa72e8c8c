// What rank 0 knows, told to all ranks.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// Rank 0's `value` on all ranks; what the others pass does not count, as long
// as it is no error. The error of any rank, with its rank named, is
// everybody's. Called by all ranks; blocks.
absl::StatusOr<std::string> FromRank0(Communicator& communicator,
                                      const absl::StatusOr<std::string>& value,
                                      std::string_view what);

}  // namespace tessera
