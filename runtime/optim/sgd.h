// Stochastic gradient descent, with momentum or without.
#pragma once

#include <string>
#include <vector>

#include "runtime/optim/optimizer.h"

namespace tessera {

// With b = momentum_buffer:
//   g = gradient + weight_decay * p
//   b = momentum * b + (1 - dampening) * g, at first b = g
//   p -= lr * (nesterov ? g + momentum * b : b)
// and p -= lr * g where momentum is 0; in one launch a group.
class Sgd final : public Optimizer {
 public:
  // Throws as Optimizer, and where nesterov lacks momentum or has dampening.
  explicit Sgd(std::vector<ParameterGroup> groups);
  bool KeepsStates(const OptimizerOptions& options) const override;

 protected:
  void StepGroup(const OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const Tensor& grad_scale) override;
  std::vector<std::string> StateNames() const override;
  bool IsFused() const override { return true; }
};

}  // namespace tessera
