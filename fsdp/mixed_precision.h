// Which types a unit computes and reduces in, and the casts at its ends.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/options.h"
#include "kernels/dtype.h"
#include "runtime/autograd/variable.h"

namespace tessera {

// Of gathered parameters whose master values are of type `master`.
DType ComputeDType(const MixedPrecision& mixed, DType master);
// Of their gradients on the wire. Unset, version 1 reduces in the type that it
// computes in, version 2 in the master's.
DType ReduceDType(const MixedPrecision& mixed, DType master, int fsdp_version);
// What floating inputs of a unit become; none: they stay.
std::optional<DType> ForwardInputDType(const MixedPrecision& mixed,
                                       std::optional<DType> compute);

// Casts those of floating types.
void CastFloating(const std::vector<Variable*>& variables, DType dtype);

}  // namespace tessera
