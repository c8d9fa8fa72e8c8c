// Weights of a source as whole tensors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// The tensor in its shape, contiguous, in the source's type, or, of an opaque
// one, in its carrier. kNotFound for a name that is not there.
absl::StatusOr<Tensor> ReadWholeWeight(const WeightSource& source,
                                       const std::string& name, Device device);

// Whether two tensors of one shape hold the same: the same bits, or, of two
// types, the same numbers. Read in pieces; both of types that tessera has.
absl::StatusOr<bool> HaveSameValues(const WeightSource& source,
                                    const std::string& a, const std::string& b);

}  // namespace tessera
