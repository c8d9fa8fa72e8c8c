// Start values of parameters: a function of seed, parameter name and element.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

class Module;

// Given to Module::ResetParameters. Values do not depend on the order of calls,
// on ranks or on threads: element i of parameter `name` is drawn from the
// random stream (seed, name), so any machine gives the same bits.
class Initializer {
 public:
  // `prefix` is the full name of the module being reset.
  Initializer(uint64_t seed, std::string prefix)
      : seed_(seed), prefix_(std::move(prefix)) {}

  // `name` is the parameter's name inside its module.
  void Normal(const Variable& parameter, const std::string& name, double mean,
              double stddev) const;
  void Uniform(const Variable& parameter, const std::string& name, double low,
               double high) const;
  void Constant(const Variable& parameter, double value) const;
  // Marks a parameter as set by other means, for the check of coverage.
  void MarkSet(const Variable& parameter) const;

  const std::set<const VariableImpl*>& set() const { return set_; }

 private:
  const uint64_t seed_;
  const std::string prefix_;
  mutable std::set<const VariableImpl*> set_;
};

// Resets every module below `root` (each once), with names as `root` sees
// them; `name_prefix` is put before them. Tied parameters are set under their
// first name. Throws, listing names, when a parameter was left unset.
void InitializeParameters(Module& root, uint64_t seed,
                          const std::string& name_prefix = "");

}  // namespace tessera
