// An optimizer that the library does not have: steps of one size, in the
// direction of the sign of a running mean of gradients.
#pragma once

#include <string>
#include <vector>

#include "runtime/optim/optimizer.h"

namespace embedding {

// m is the running mean: x -= lr * sign(beta1 * m + (1 - beta1) * grad), and
// then m = beta2 * m + (1 - beta2) * grad. Parameters are float32.
class Lion final : public tessera::Optimizer {
 public:
  using Optimizer::Optimizer;

 private:
  void StepGroup(const tessera::OptimizerOptions& options,
                 const std::vector<tessera::ParameterUpdate>& updates,
                 const tessera::Tensor& grad_scale) override;
  std::vector<std::string> StateNames() const override { return {"mean"}; }
};

}  // namespace embedding
