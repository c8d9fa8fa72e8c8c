// This rank's part of a whole tensor that lies as a parameter does.
#pragma once

#include "absl/status/statusor.h"
#include "fsdp/fully_shard.h"

namespace tessera {

// A new vector of `parameter.length` elements of `whole`, which has the
// parameter's global shape, in `whole`'s type and on its device.
// kInvalidArgument for another shape.
absl::StatusOr<Tensor> LocalPart(const ShardedParameter& parameter,
                                 const Tensor& whole);

}  // namespace tessera
