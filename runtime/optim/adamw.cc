#include "runtime/optim/adamw.h"

#include "runtime/ops/optimizer.h"

namespace tessera {

void AdamW::StepGroup(const OptimizerOptions& options,
                      const std::vector<ParameterUpdate>& updates,
                      const Tensor& grad_scale) {
  std::vector<ops::AdamWParameter> parameters;
  parameters.reserve(updates.size());
  for (const ParameterUpdate& u : updates) {
    parameters.push_back({.parameter = u.data,
                          .gradient = u.grad,
                          .shadow = u.shadow,
                          .exp_avg = u.State("exp_avg"),
                          .exp_avg_sq = u.State("exp_avg_sq"),
                          .step = u.state->step});
  }
  ops::AdamW(parameters,
             {.lr = options.lr,
              .beta1 = options.beta1,
              .beta2 = options.beta2,
              .eps = options.eps,
              .weight_decay = options.weight_decay},
             grad_scale);
}

std::vector<std::string> AdamW::StateNames() const {
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace tessera
