// All names of each parameter: of a tied one there are several.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/nn/module.h"

namespace tessera {

class ParameterNames {
 public:
  explicit ParameterNames(const Module& module) {
    for (const NamedVariable& p : module.NamedParameters(true)) {
      names_[p.variable.impl().get()].push_back(p.name);
    }
  }

  // In the module's order; `parameter` is one of its parameters.
  const std::vector<std::string>& Of(const Variable& parameter) const {
    return names_.at(parameter.impl().get());
  }

 private:
  std::map<const VariableImpl*, std::vector<std::string>> names_;
};

}  // namespace tessera
