#include "runtime/optim/sgd.h"

#include <utility>

#include "runtime/ops/optimizer.h"

namespace tessera {
namespace {

constexpr char kBuffer[] = "momentum_buffer";

}  // namespace

Sgd::Sgd(std::vector<ParameterGroup> groups) : Optimizer(std::move(groups)) {
  for (const ParameterGroup& group : this->groups()) {
    const OptimizerOptions& options = group.options;
    if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
      throw Error(absl::InvalidArgumentError(
          "Sgd: nesterov needs momentum > 0 and dampening 0"));
    }
  }
}

void Sgd::StepGroup(const OptimizerOptions& options,
                    const std::vector<ParameterUpdate>& updates,
                    const Tensor& grad_scale) {
  std::vector<ops::SgdParameter> parameters;
  parameters.reserve(updates.size());
  for (const ParameterUpdate& u : updates) {
    ops::SgdParameter p{u.data, u.grad, u.shadow, {}, false};
    if (options.momentum != 0) {
      p.first = !u.state->tensors.contains(kBuffer);
      p.momentum_buffer = u.State(kBuffer);
    }
    parameters.push_back(std::move(p));
  }
  ops::Sgd(parameters,
           {.lr = options.lr,
            .momentum = options.momentum,
            .dampening = options.dampening,
            .weight_decay = options.weight_decay,
            .nesterov = options.nesterov},
           grad_scale);
}

std::vector<std::string> Sgd::StateNames() const { return {kBuffer}; }

bool Sgd::KeepsStates(const OptimizerOptions& options) const {
  return options.momentum != 0;
}

}  // namespace tessera
