#include "fsdp/switch_optimizer_parameters.h"

#include "fsdp/local_part.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// A state of the whole parameter, or one that is cut already, as what the
// rank keeps.
absl::StatusOr<Tensor> CutState(const ShardedParameter& parameter,
                                const Tensor& state) {
  const Tensor data = parameter.variable.data();
  if (state.shape() == data.shape() && state.device() == data.device()) {
    return state;
  }
  const MemoryCategoryGuard guard(MemoryCategory::kOptimizerState);
  ASSIGN_OR_RETURN(const Tensor part, LocalPart(parameter, state));
  return part.Reshape(data.shape());
}

}  // namespace

ParameterMapping MappingTo(const FullyShardedModule& model) {
  ParameterMapping mapping;
  for (const ShardedParameter& p : model.Parameters()) mapping[p.name] = p;
  return mapping;
}

absl::Status Fsdp2SwitchOptimizerParameters(Optimizer& optimizer,
                                            const ParameterMapping& mapping) {
  std::map<std::string, ParameterReplacement> replacements;
  for (const auto& [name, parameter] : mapping) {
    replacements[name] = {
        parameter.variable,
        [p = parameter](const Tensor& state) { return CutState(p, state); }};
  }
  return optimizer.ReplaceParameters(replacements);
}

}  // namespace tessera
