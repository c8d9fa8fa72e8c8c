// Which modules become units, and which parameters each unit owns.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/nn/module.h"

namespace tessera {

// The blocks that the model names (NoSplitModules), and, of what lies outside
// of blocks, each module that holds a tensor of two or more dims (embedding,
// head, the layers of a plain network): a large table must not stay gathered
// with the root all the time. The rest, final norms, is the root's.
struct WrapByDefault {};
// The root alone.
struct WrapNothing {};
// Modules of these classes, at any depth; none named: those that the model
// names (NoSplitModules).
struct WrapByClass {
  std::vector<std::string> class_names;
};
// Children first: a module becomes a unit when at least this many elements
// below it are in no unit yet.
struct WrapBySize {
  int64_t min_num_elements = 0;
};
struct WrapModules {
  std::vector<Module*> modules;
};
struct WrapWhere {
  std::function<bool(const std::string& name, const Module& module)> predicate;
};
// Modules whose full dotted name one of these regular expressions matches from
// first to last character.
struct WrapByName {
  std::vector<std::string> patterns;
};

// The root is always a unit, whatever the policy says. Modules that are only
// containers never are: they run no forward that could gather them.
using WrapPolicy = std::variant<WrapByDefault, WrapNothing, WrapByClass,
                                WrapBySize, WrapModules, WrapWhere, WrapByName>;

// What is kept out of sharding.
struct IgnoredSet {
  std::set<const VariableImpl*> parameters;
  std::set<const Module*> modules;  // Whole ones, and all below them.

  bool Contains(const Variable& parameter) const {
    return parameters.contains(parameter.impl().get());
  }
};

// Parameters below `modules`, and below modules (or of parameters) whose full
// name a pattern matches from first to last character. A module that is not
// below `root`, or a pattern that matches nothing, is an error.
absl::StatusOr<IgnoredSet> FindIgnored(
    Module& root, const std::vector<Module*>& modules,
    const std::vector<std::string>& patterns);

// One communication group: what is gathered before the forward of any of
// `modules`.
struct UnitPlan {
  std::string name;  // Of the first module; "(root)" for the root.
  // More than one where modules hold the same tied tensor.
  std::vector<Module*> modules;
  std::vector<std::string> parameter_names;  // Those of the plain model.
  std::vector<Variable> parameters;
  bool stays_gathered = false;  // From forward to backward.
};

// Modules that become one unit together.
struct JointUnit {
  std::vector<Module*> modules;
  bool stays_gathered = false;  // From forward to backward.
};

struct WrapResult {
  std::vector<UnitPlan> units;  // Children first, the root last.
  std::vector<std::string> warnings;
};

// [Note: who owns a parameter]
// The innermost unit around the module that holds it. A tied parameter belongs
// to the innermost unit around all the modules that hold it, so it is gathered
// whenever one of them runs; if each of these modules is a unit itself
// (embedding and head), they are made one unit instead. A module that is
// registered in two places counts as two. Each parameter is owned once, and a
// unit that owns nothing is left out, but for the root. The modules of each
// list of `joint` are one unit, beside what the policy chooses; one that is not
// below `root` is an error.
absl::StatusOr<WrapResult> PlanUnits(Module& root, const WrapPolicy& policy,
                                     const IgnoredSet& ignored = {},
                                     const std::vector<JointUnit>& joint = {});

}  // namespace tessera
