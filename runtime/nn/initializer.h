// Start values of parameters: a function of seed, parameter name and element.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

class Module;

// Parameters that have their start values.
using InitializedSet = std::set<const VariableImpl*>;

// Given to Module::ResetParameters. Values do not depend on the order of calls,
// on ranks or on threads: element i of parameter `name` is drawn from the
// random stream (seed, full name), so any machine gives the same bits.
//
// Leaves alone what is in `done` already (a tied parameter under its second
// name) and what is on the meta device; adds to `done` what it sets.
class Initializer {
 public:
  // `prefix` is the full name of the module being reset. `done` outlives this.
  Initializer(uint64_t seed, std::string prefix, InitializedSet* done)
      : seed_(seed), prefix_(std::move(prefix)), done_(done) {}

  // `name` is the parameter's name inside its module.
  void Normal(const Variable& parameter, const std::string& name, double mean,
              double stddev) const;
  void Uniform(const Variable& parameter, const std::string& name, double low,
               double high) const;
  void Constant(const Variable& parameter, double value) const;
  // Marks a parameter as set by other means, for the check of coverage.
  void MarkSet(const Variable& parameter) const;
  // Whether this would set `parameter`.
  bool Wants(const Variable& parameter) const;

 private:
  const uint64_t seed_;
  const std::string prefix_;
  InitializedSet* const done_;
};

// Resets every module below `root` (each once), with names as `root` sees
// them; `name_prefix` is put before them. Tied parameters are set under their
// first name. Throws, listing names, when a parameter was left unset or is on
// the meta device.
void InitializeParameters(Module& root, uint64_t seed,
                          const std::string& name_prefix = "");

}  // namespace tessera
