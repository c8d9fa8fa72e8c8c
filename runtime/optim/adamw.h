// Adam with decoupled weight decay.
#pragma once

#include <string>
#include <vector>

#include "runtime/optim/optimizer.h"

namespace tessera {

// With g the gradient, m = exp_avg, v = exp_avg_sq and t the step from 1:
//   p -= lr * weight_decay * p
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
// in one launch a group. weight_decay is 0 unless set.
class AdamW final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void StepGroup(const OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const Tensor& grad_scale) override;
  std::vector<std::string> StateNames() const override;
  bool IsFused() const override { return true; }
};

}  // namespace tessera
