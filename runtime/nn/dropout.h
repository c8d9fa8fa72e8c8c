// Dropout, whose masks depend on the module's name and the place in training.
#pragma once

#include <string>

#include "runtime/nn/module.h"

namespace tessera {

// In training each element is zeroed with `probability`, the others scaled up;
// in evaluation, or with probability 0, the input itself. `name` is the full
// name of the module in its model and keys its masks, see RandomContext.
class Dropout : public Module {
 public:
  // Throws unless 0 <= probability < 1.
  Dropout(double probability, const std::string& name);

  // x [B, ...]: dim 0 is the sample.
  Variable operator()(const Variable& x);

 private:
  const double probability_;
  const std::string name_;
};

}  // namespace tessera
