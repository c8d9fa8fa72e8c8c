#include "fsdp/mixed_precision.h"

#include "runtime/functions/elementwise.h"

namespace tessera {

DType ComputeDType(const MixedPrecision& mixed, DType master) {
  return IsFloating(master) ? mixed.param_dtype.value_or(master) : master;
}

DType ReduceDType(const MixedPrecision& mixed, DType master, int fsdp_version) {
  const DType unset =
      fsdp_version == 1 ? ComputeDType(mixed, master) : AccumulateDType(master);
  return mixed.reduce_dtype.value_or(unset);
}

std::optional<DType> ForwardInputDType(const MixedPrecision& mixed,
                                       std::optional<DType> compute) {
  std::optional<DType> dtype = mixed.param_dtype;
  // The outputs of one unit are the inputs of the next.
  if (!dtype.has_value() && mixed.output_dtype.has_value()) dtype = compute;
  if (dtype.has_value() && !IsFloating(*dtype)) return std::nullopt;
  return dtype;
}

void CastFloating(const std::vector<Variable*>& variables, DType dtype) {
  for (Variable* v : variables) {
    if (IsFloating(v->dtype()) && v->dtype() != dtype) {
      *v = functions::Cast(*v, dtype);
    }
  }
}

}  // namespace tessera
