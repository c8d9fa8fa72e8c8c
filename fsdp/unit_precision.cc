// Which types units compute in: those of mixed precision, or their own.
#include <optional>
#include <vector>

#include "fsdp/mixed_precision.h"
#include "fsdp/runner.h"
#include "runtime/autograd/engine.h"

namespace tessera {

// [Note: evaluation in full precision]
// A forward of a module in evaluation mode gathers its unit in the masters'
// type, and casts nothing. A backward gathers what the last forward with
// gradients did, since the graph holds views of it. A unit that is still
// gathered in the other type is resharded first.
bool Runner::WantsFullPrecision(const Unit& unit) const {
  if (!context_->mode.full_precision_in_eval) return false;
  const UnitRun& run = runs_[unit.index()];
  return Engine::InBackward() ? run.graph_in_full_precision
                              : !run.modules[0]->training();
}

void Runner::ChoosePrecision(Unit& unit) {
  const bool full = WantsFullPrecision(unit);
  if (!Engine::InBackward() && Training()) {
    runs_[unit.index()].graph_in_full_precision = full;
  }
  if (unit.full_precision() != full && unit.state() != UnitState::kSharded) {
    Reshard(unit);
  }
}

void Runner::CastInputs(const Unit& unit,
                        const std::vector<Variable*>& inputs) {
  if (unit.full_precision()) return;
  if (!is_root(unit) && !context_->mode.cast_forward_inputs) return;
  std::optional<DType> compute;
  if (!unit.groups().empty()) compute = unit.groups()[0]->compute_dtype();
  const auto dtype =
      ForwardInputDType(context_->options.mixed_precision, compute);
  if (dtype.has_value()) CastFloating(inputs, *dtype);
}

void Runner::CastOutputs(const Unit& unit,
                         const std::vector<Variable*>& outputs) {
  if (unit.full_precision()) return;
  const auto& dtype = context_->options.mixed_precision.output_dtype;
  if (dtype.has_value()) CastFloating(outputs, *dtype);
}

}  // namespace tessera
