// What all optimizers share: groups of parameters, their states by name, and
// which parameters take part in a step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/autograd/variable.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct OptimizerParameter {
  std::string name;  // Of the parameter in the plain model.
  Variable variable;
};

// Numbers that may change between steps; an optimizer reads those it knows.
struct OptimizerOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9;  // AdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;  // Sgd
  double dampening = 0;
  bool nesterov = false;
  std::map<std::string, double> extra = {};  // Of an embedder's optimizer.
};

struct ParameterGroup {
  std::vector<OptimizerParameter> parameters;
  OptimizerOptions options = {};
};

// The parameters whose names are in `no_decay` in a group with weight decay 0,
// the others in one with `options`; empty groups are left out. The caller, who
// knows the shapes before sharding, chooses (usually: fewer than two dims).
// Throws Error(kInvalidArgument) for a name that is no parameter's.
std::vector<ParameterGroup> GroupsByDecay(
    const std::vector<OptimizerParameter>& parameters,
    const std::vector<std::string>& no_decay, const OptimizerOptions& options);

// What an optimizer remembers of one parameter, from its first update on.
struct ParameterState {
  int64_t step = 0;                       // Updates so far.
  std::map<std::string, Tensor> tensors;  // "exp_avg", ...
};

// One parameter in a step: it has a gradient.
struct ParameterUpdate {
  std::string name;
  Tensor data;
  Tensor grad;    // AccumulateDType of data's, as many elements.
  Tensor shadow;  // Where a copy of the new value goes; usually undefined.
  ParameterState* state;  // Its `step` counts this update already.

  // The state `state_name`: zeros like `data`, in AccumulateDType, when it is
  // asked for the first time.
  const Tensor& State(const std::string& state_name) const;
};

// One entry of an optimizer's state: "step" is an integer, all others are
// tensors with the elements of the parameter's data (of this rank's shard).
struct NamedOptimizerState {
  std::string parameter;
  std::string state;
  std::variant<int64_t, Tensor> value;
};

// What takes a parameter's place in an optimizer.
struct ParameterReplacement {
  Variable variable;
  // Makes of a state of the parameter one of `variable`: a tensor of the
  // variable's shape, in AccumulateDType of its type. Unset: as it is.
  std::function<absl::StatusOr<Tensor>(const Tensor& state)> convert_state = {};
};

// Updates variables from their gradients. Holds handles of the variables, not
// their data: what data() and grad() are at each step counts, so an optimizer
// may be made before its model is sharded, as long as it has not stepped.
//
// A parameter without a gradient is left alone: value, state and step. One
// with no elements on this rank counts its steps as elsewhere.
//
// An own optimizer defines StepGroup and StateNames:
//
//   class Momentum : public Optimizer {
//     using Optimizer::Optimizer;
//     std::vector<std::string> StateNames() const override { return {"m"}; }
//     void StepGroup(const OptimizerOptions& options,
//                    const std::vector<ParameterUpdate>& updates,
//                    const Tensor&) override {
//       for (const ParameterUpdate& u : updates) {
//         const Tensor& m = u.State("m");
//         ops::ScaleInPlace(m, options.momentum);
//         ops::AddInto(m, u.grad);
//         ops::AddInto(u.data, m, -options.lr);
//       }
//     }
//   };
class Optimizer {
 public:
  // Throws Error(kInvalidArgument) when there is no parameter, one is undefined
  // or listed twice, or two have one name.
  explicit Optimizer(std::vector<ParameterGroup> groups);
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Throws, before it changes
  // anything, naming the parameter, when data and gradient or data and state
  // do not fit.
  void Step();
  void ZeroGrad();

  // Options may be changed between steps; parameters may not.
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  OptimizerOptions& options(int group) { return groups_.at(group).options; }
  void set_lr(double lr);  // Of all groups.
  void set_lr(int group, double lr) { options(group).lr = lr; }

  // The next step, and only that one, multiplies gradients by `coefficient`
  // (float32, one element), which stays on its device: for clipping.
  void SetGradScale(Tensor coefficient);
  // Each step also writes the new value of `parameter` to `shadow` (of as many
  // elements; bfloat16 or float16). Undefined: no longer. Throws for a
  // variable that is not in a group or is not float32.
  void SetShadow(const Variable& parameter, Tensor shadow);

  // The states in the order of the groups: of every parameter its "step", 0
  // before the first update; then the tensors, which share memory with the
  // optimizer.
  std::vector<NamedOptimizerState> NamedState() const;
  // Copies `states` in place of all there is; tensors of any floating dtype.
  // Refuses, and then changes nothing: parameters and states that it does not
  // know, a missing state of a parameter that requires a gradient, a wrong
  // number of elements.
  absl::Status LoadState(const std::vector<NamedOptimizerState>& states);

  // Goes on with other variables under the same names: order, options and steps
  // stay, states are converted, shadows are dropped. Refuses, and then changes
  // nothing: a parameter without a replacement (all are named), a variable that
  // comes twice or is undefined, a state that does not fit it.
  absl::Status ReplaceParameters(
      const std::map<std::string, ParameterReplacement>& replacements);

  // Whether it keeps StateNames() of the parameters of a group with `options`.
  virtual bool KeepsStates(const OptimizerOptions&) const { return true; }

 protected:
  // Updates `updates`, all of one group, with as few launches as possible.
  // `grad_scale` is undefined, or a coefficient (see SetGradScale) to multiply
  // gradients by; always undefined unless IsFused().
  virtual void StepGroup(const OptimizerOptions& options,
                         const std::vector<ParameterUpdate>& updates,
                         const Tensor& grad_scale) = 0;
  // The tensors that StepGroup keeps of a parameter: what LoadState accepts,
  // and demands of a parameter that has been updated.
  virtual std::vector<std::string> StateNames() const = 0;
  // Whether StepGroup itself applies `grad_scale` and writes shadows. If not,
  // Step does both, in passes of its own.
  virtual bool IsFused() const { return false; }

 private:
  struct Slot {
    int group = 0;
    Variable variable;
    ParameterState state;
    Tensor shadow;
  };
  std::vector<ParameterUpdate> UpdatesOf(const ParameterGroup& group);
  static void ScaleGradients(const std::vector<ParameterUpdate>& updates,
                             const Tensor& grad_scale);
  absl::Status LoadEntry(const NamedOptimizerState& entry,
                         std::map<std::string, ParameterState>& loaded) const;
  absl::Status CheckComplete(
      const std::map<std::string, ParameterState>& loaded) const;

  std::vector<ParameterGroup> groups_;
  std::map<std::string, Slot> slots_;  // By the parameter's name.
  Tensor grad_scale_;
};

}  // namespace tessera
