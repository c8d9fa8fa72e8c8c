// What a training run can be told about sharding and element types.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/options.h"

namespace tessera {

// From flags. Values that make no sense are errors that name the flag.
absl::StatusOr<FullyShardOptions> ShardingFromFlags(uint64_t seed);

}  // namespace tessera
