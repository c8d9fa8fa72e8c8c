#include "runtime/optim/optimizer.h"

#include <algorithm>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

absl::Status Invalid(const std::string& parameter, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("Optimizer: parameter ", parameter, ": ", what));
}

Tensor ZerosForState(const Tensor& data) {
  const MemoryCategoryGuard guard(MemoryCategory::kOptimizerState);
  return ops::Zeros(data.shape(),
                    {AccumulateDType(data.dtype()), data.device()});
}

void CheckGradient(const ParameterUpdate& update) {
  const Tensor& data = update.data;
  const Tensor& grad = update.grad;
  if (grad.num_elements() == data.num_elements() &&
      grad.dtype() == AccumulateDType(data.dtype())) {
    return;
  }
  OrThrow(Invalid(
      update.name,
      absl::StrCat("the gradient must have the elements of the value, ",
                   data.ToString(), ", as ",
                   DTypeName(AccumulateDType(data.dtype())), ", and is ",
                   grad.ToString(),
                   "; call ZeroGrad() after sharding or casting a model")));
}

void CheckStates(const ParameterUpdate& update) {
  const Tensor& data = update.data;
  for (const auto& [name, state] : update.state->tensors) {
    if (state.shape() == data.shape() && state.device() == data.device() &&
        state.dtype() == AccumulateDType(data.dtype())) {
      continue;
    }
    OrThrow(Invalid(
        update.name,
        absl::StrCat("its value is ", data.ToString(), ", but its state ", name,
                     " was made for another: ", state.ToString(),
                     "; the optimizer was created and stepped before sharding "
                     "(or moving) the model: create it afterwards")));
  }
}

void CheckShadow(const ParameterUpdate& update) {
  if (!update.shadow.defined() ||
      update.shadow.num_elements() == update.data.num_elements()) {
    return;
  }
  OrThrow(Invalid(update.name,
                  absl::StrCat("the shadow ", update.shadow.ToString(),
                               " must have the elements of the value, ",
                               update.data.ToString())));
}

// The tensor of `entry` as a state of `data`.
absl::StatusOr<Tensor> CopyOfState(const NamedOptimizerState& entry,
                                   const Tensor& data) {
  const Tensor* tensor = std::get_if<Tensor>(&entry.value);
  const bool defined = tensor != nullptr && tensor->defined();
  if (!defined || tensor->num_elements() != data.num_elements()) {
    return Invalid(entry.parameter,
                   absl::StrCat(entry.state, " must have the elements of ",
                                data.ToString(), " and is ",
                                defined ? tensor->ToString() : "no tensor"));
  }
  Tensor copy;
  RETURN_IF_ERROR(Try([&] {
    copy = ZerosForState(data);
    ops::Copy(ops::Contiguous(*tensor).Reshape(data.shape()), copy);
  }));
  return copy;
}

}  // namespace

std::vector<ParameterGroup> GroupsByDecay(
    const std::vector<OptimizerParameter>& parameters,
    const std::vector<std::string>& no_decay, const OptimizerOptions& options) {
  std::set<std::string> without(no_decay.begin(), no_decay.end());
  std::set<std::string> unknown = without;
  ParameterGroup decayed{{}, options}, rest{{}, options};
  rest.options.weight_decay = 0;
  for (const OptimizerParameter& p : parameters) {
    unknown.erase(p.name);
    (without.contains(p.name) ? rest : decayed).parameters.push_back(p);
  }
  if (!unknown.empty()) {
    OrThrow(Invalid(*unknown.begin(), "named for no decay, but not given"));
  }
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&decayed, &rest}) {
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

const Tensor& ParameterUpdate::State(const std::string& state_name) const {
  Tensor& tensor = state->tensors[state_name];
  if (!tensor.defined()) tensor = ZerosForState(data);
  return tensor;
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups)
    : groups_(std::move(groups)) {
  std::set<const VariableImpl*> seen;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const OptimizerParameter& p : groups_[g].parameters) {
      if (!p.variable.defined()) OrThrow(Invalid(p.name, "is undefined"));
      if (slots_.contains(p.name)) {
        OrThrow(Invalid(p.name, "two have this name; states are kept by name"));
      }
      Slot& slot = slots_[p.name];
      slot.group = static_cast<int>(g);
      slot.variable = p.variable;
      if (!seen.insert(p.variable.impl().get()).second) {
        OrThrow(Invalid(p.name, "is listed twice, under another name before"));
      }
    }
  }
  if (slots_.empty()) {
    throw Error(absl::InvalidArgumentError(
        "Optimizer: there is no parameter to optimize"));
  }
}

Optimizer::~Optimizer() = default;

std::vector<ParameterUpdate> Optimizer::UpdatesOf(const ParameterGroup& group) {
  std::vector<ParameterUpdate> updates;
  for (const OptimizerParameter& p : group.parameters) {
    if (!p.variable.grad().defined()) continue;
    Slot& slot = slots_.at(p.name);
    const ParameterUpdate update{p.name, p.variable.data(), p.variable.grad(),
                                 slot.shadow, &slot.state};
    CheckGradient(update);
    CheckStates(update);
    CheckShadow(update);
    updates.push_back(update);
  }
  return updates;
}

void Optimizer::Step() {
  std::vector<std::vector<ParameterUpdate>> updates;
  for (const ParameterGroup& group : groups_) {
    updates.push_back(UpdatesOf(group));
  }
  const Tensor grad_scale = std::exchange(grad_scale_, Tensor());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (updates[g].empty()) continue;
    for (const ParameterUpdate& u : updates[g]) ++u.state->step;
    if (IsFused()) {
      StepGroup(groups_[g].options, updates[g], grad_scale);
      continue;
    }
    if (grad_scale.defined()) ScaleGradients(updates[g], grad_scale);
    StepGroup(groups_[g].options, updates[g], Tensor());
    for (const ParameterUpdate& u : updates[g]) {
      if (u.shadow.defined()) {
        ops::Copy(u.data, u.shadow.Reshape(u.data.shape()));
      }
    }
  }
}

void Optimizer::ScaleGradients(const std::vector<ParameterUpdate>& updates,
                               const Tensor& grad_scale) {
  const Tensor factor = grad_scale.Reshape({});
  for (const ParameterUpdate& u : updates) {
    ops::MulInto(u.grad, ops::Cast(factor, u.grad.dtype()));
  }
}

void Optimizer::ZeroGrad() {
  for (auto& [name, slot] : slots_) slot.variable.ZeroGrad();
}

void Optimizer::set_lr(double lr) {
  for (ParameterGroup& group : groups_) group.options.lr = lr;
}

void Optimizer::SetGradScale(Tensor coefficient) {
  if (coefficient.defined() && (coefficient.dtype() != DType::kFloat32 ||
                                coefficient.num_elements() != 1)) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Optimizer: a gradient scale is one float32, not ",
                     coefficient.ToString())));
  }
  grad_scale_ = std::move(coefficient);
}

void Optimizer::SetShadow(const Variable& parameter, Tensor shadow) {
  for (auto& [name, slot] : slots_) {
    if (!slot.variable.Is(parameter)) continue;
    const bool fits =
        !shadow.defined() || (parameter.dtype() == DType::kFloat32 &&
                              (shadow.dtype() == DType::kBFloat16 ||
                               shadow.dtype() == DType::kFloat16) &&
                              shadow.IsContiguous());
    if (!fits) {
      OrThrow(Invalid(
          name, absl::StrCat("a shadow is a contiguous bfloat16 or float16 "
                             "copy of a float32 parameter, not ",
                             shadow.ToString(), " of ",
                             parameter.data().ToString())));
    }
    slot.shadow = std::move(shadow);
    return;
  }
  OrThrow(Invalid(parameter.name(), "is in no group and can have no shadow"));
}

std::vector<NamedOptimizerState> Optimizer::NamedState() const {
  std::vector<NamedOptimizerState> states;
  for (const ParameterGroup& group : groups_) {
    for (const OptimizerParameter& p : group.parameters) {
      const ParameterState& state = slots_.at(p.name).state;
      states.push_back({p.name, "step", state.step});
      for (const auto& [name, tensor] : state.tensors) {
        states.push_back({p.name, name, tensor});
      }
    }
  }
  return states;
}

absl::Status Optimizer::LoadEntry(
    const NamedOptimizerState& entry,
    std::map<std::string, ParameterState>& loaded) const {
  const auto found = slots_.find(entry.parameter);
  if (found == slots_.end()) {
    return Invalid(entry.parameter, "has a saved state, but is in no group");
  }
  ParameterState& state = loaded[entry.parameter];
  if (entry.state == "step") {
    const int64_t* step = std::get_if<int64_t>(&entry.value);
    if (step == nullptr || *step < 0) {
      return Invalid(entry.parameter, "its step must be an integer, 0 or more");
    }
    state.step = *step;
    return absl::OkStatus();
  }
  const std::vector<std::string> names = StateNames();
  if (!KeepsStates(groups_[found->second.group].options) ||
      std::find(names.begin(), names.end(), entry.state) == names.end()) {
    return Invalid(
        entry.parameter,
        absl::StrCat("this optimizer, with its options, has no ", entry.state));
  }
  if (state.tensors.contains(entry.state)) {
    return Invalid(entry.parameter, absl::StrCat(entry.state, " comes twice"));
  }
  ASSIGN_OR_RETURN(state.tensors[entry.state],
                   CopyOfState(entry, found->second.variable.data()));
  return absl::OkStatus();
}

namespace {

// Of a parameter that has been updated: its step, and tensors of all `names`.
absl::Status CheckStates(const std::string& parameter,
                         const ParameterState& state,
                         const std::vector<std::string>& names) {
  if (state.step == 0 && state.tensors.empty()) return absl::OkStatus();
  if (state.step == 0) return Invalid(parameter, "has no saved step");
  for (const std::string& name : names) {
    if (state.tensors.contains(name)) continue;
    return Invalid(parameter, absl::StrCat("has no saved ", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Optimizer::CheckComplete(
    const std::map<std::string, ParameterState>& loaded) const {
  for (const auto& [name, slot] : slots_) {
    const auto found = loaded.find(name);
    if (found == loaded.end()) {
      if (!slot.variable.requires_grad()) continue;
      return Invalid(name, "requires a gradient and has no saved state");
    }
    const bool keeps = KeepsStates(groups_[slot.group].options);
    RETURN_IF_ERROR(
        CheckStates(name, found->second,
                    keeps ? StateNames() : std::vector<std::string>()));
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::map<std::string, Tensor>> ConvertStates(
    const std::string& parameter, const ParameterState& state,
    const ParameterReplacement& replacement) {
  const Tensor& data = replacement.variable.data();
  std::map<std::string, Tensor> converted;
  for (const auto& [name, tensor] : state.tensors) {
    Tensor& result = converted[name];
    result = tensor;
    if (replacement.convert_state) {
      ASSIGN_OR_RETURN(result, replacement.convert_state(tensor));
    }
    if (result.shape() == data.shape() && result.device() == data.device() &&
        result.dtype() == AccumulateDType(data.dtype())) {
      continue;
    }
    return Invalid(parameter,
                   absl::StrCat("its state ", name, ", ", result.ToString(),
                                ", does not fit the value that takes its "
                                "place, ",
                                data.ToString()));
  }
  return converted;
}

}  // namespace

absl::Status Optimizer::ReplaceParameters(
    const std::map<std::string, ParameterReplacement>& replacements) {
  std::vector<std::string> missing;
  std::set<const VariableImpl*> seen;
  std::map<std::string, std::map<std::string, Tensor>> states;
  for (const auto& [name, slot] : slots_) {
    const auto found = replacements.find(name);
    if (found == replacements.end() || !found->second.variable.defined()) {
      missing.push_back(name);
      continue;
    }
    if (!seen.insert(found->second.variable.impl().get()).second) {
      return Invalid(name, "another one has the same replacement");
    }
    ASSIGN_OR_RETURN(states[name],
                     ConvertStates(name, slot.state, found->second));
  }
  if (!missing.empty()) {
    return Invalid(absl::StrJoin(missing, ", "),
                   "has no replacement; nothing was changed");
  }
  for (ParameterGroup& group : groups_) {
    for (OptimizerParameter& p : group.parameters) {
      Slot& slot = slots_.at(p.name);
      p.variable = slot.variable = replacements.at(p.name).variable;
      slot.state.tensors = std::move(states[p.name]);
      slot.shadow = Tensor();
    }
  }
  return absl::OkStatus();
}

absl::Status Optimizer::LoadState(
    const std::vector<NamedOptimizerState>& states) {
  std::map<std::string, ParameterState> loaded;
  for (const NamedOptimizerState& entry : states) {
    RETURN_IF_ERROR(LoadEntry(entry, loaded));
  }
  RETURN_IF_ERROR(CheckComplete(loaded));
  for (auto& [name, slot] : slots_) slot.state = std::move(loaded[name]);
  return absl::OkStatus();
}

}  // namespace tessera
