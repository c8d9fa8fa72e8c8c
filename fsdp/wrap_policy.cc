#include "fsdp/wrap_policy.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using ModuleSet = std::unordered_set<const Module*>;

int64_t NumElements(const std::vector<Variable>& parameters) {
  int64_t count = 0;
  for (const Variable& p : parameters) count += p.shape().num_elements();
  return count;
}

int64_t NumBytes(const UnitPlan& unit) {
  int64_t bytes = 0;
  for (const Variable& p : unit.parameters) bytes += p.data().num_bytes();
  return bytes;
}

absl::StatusOr<std::vector<std::regex>> Compile(
    const std::vector<std::string>& patterns) {
  std::vector<std::regex> compiled;
  for (const std::string& pattern : patterns) {
    try {
      compiled.emplace_back(pattern);
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", pattern, "\" is no regular expression: ", error.what()));
    }
  }
  return compiled;
}

std::vector<std::string> ClassNames(Module& root) {
  std::set<std::string> names;
  for (const NamedModule& m : root.NamedModules()) {
    names.insert(m.module->class_name());
  }
  return {names.begin(), names.end()};
}

// Chooses the modules (the root and containers may be among them, and are
// taken out later). One overload a policy.
class Chooser {
 public:
  Chooser(Module& root, const IgnoredSet& ignored,
          std::vector<std::string>& warnings)
      : root_(root),
        modules_(root.NamedModules()),
        ignored_(ignored),
        warnings_(warnings) {}

  absl::StatusOr<ModuleSet> operator()(const WrapNothing&) {
    return ModuleSet{};
  }

  absl::StatusOr<ModuleSet> operator()(const WrapByDefault&) {
    ModuleSet chosen;
    ChooseBlocksAndTables(root_, NoSplitModules(), chosen);
    return chosen;
  }

  absl::StatusOr<ModuleSet> operator()(const WrapByClass& policy) {
    ModuleSet chosen;
    const std::vector<std::string> names =
        policy.class_names.empty() ? NoSplitModules() : policy.class_names;
    for (const std::string& name : names) {
      bool found = false;
      for (const NamedModule& m : modules_) {
        if (m.module->class_name() != name) continue;
        chosen.insert(m.module);
        found = true;
      }
      if (found) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("Could not find the transformer layer class ", name,
                       " in the model. Its classes are: ",
                       absl::StrJoin(ClassNames(root_), ", ")));
    }
    return chosen;
  }

  absl::StatusOr<ModuleSet> operator()(const WrapBySize& policy) {
    if (policy.min_num_elements < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("wrapping by size: min_num_elements must not be "
                       "negative, got ",
                       policy.min_num_elements));
    }
    ModuleSet chosen;
    if (policy.min_num_elements == 0) return chosen;
    std::unordered_set<const VariableImpl*> taken;
    ChooseBySize(root_, policy.min_num_elements, taken, chosen);
    return chosen;
  }

  absl::StatusOr<ModuleSet> operator()(const WrapModules& policy) {
    ModuleSet chosen;
    for (Module* module : policy.modules) {
      const bool found =
          std::any_of(modules_.begin(), modules_.end(),
                      [&](const NamedModule& m) { return m.module == module; });
      if (!found) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a module to wrap (",
            module == nullptr ? std::string("null") : module->class_name(),
            ") is not a part of the model"));
      }
      chosen.insert(module);
    }
    return chosen;
  }

  absl::StatusOr<ModuleSet> operator()(const WrapWhere& policy) {
    if (policy.predicate == nullptr) {
      return absl::InvalidArgumentError("wrapping by a predicate: it is null");
    }
    ModuleSet chosen;
    for (const NamedModule& m : modules_) {
      if (policy.predicate(m.name, *m.module)) chosen.insert(m.module);
    }
    return chosen;
  }

  absl::StatusOr<ModuleSet> operator()(const WrapByName& policy) {
    ASSIGN_OR_RETURN(const std::vector<std::regex> compiled,
                     Compile(policy.patterns));
    ModuleSet chosen;
    std::vector<std::string> unmatched;
    for (size_t i = 0; i < compiled.size(); ++i) {
      bool found = false;
      for (const NamedModule& m : modules_) {
        if (m.name.empty() || !std::regex_match(m.name, compiled[i])) continue;
        chosen.insert(m.module);
        found = true;
      }
      if (!found) unmatched.push_back(policy.patterns[i]);
    }
    if (unmatched.empty()) return chosen;
    const std::string text = absl::StrCat(
        "unit pattern \"", absl::StrJoin(unmatched, "\", \""),
        "\" matches no module (patterns match whole names, such as \"",
        modules_.back().name, "\")");
    if (chosen.empty()) return absl::InvalidArgumentError(text);
    warnings_.push_back(text);
    return chosen;
  }

 private:
  std::vector<std::string> NoSplitModules() const {
    std::set<std::string> names;
    for (const NamedModule& m : modules_) {
      for (const std::string& name : m.module->NoSplitModules()) {
        names.insert(name);
      }
    }
    return {names.begin(), names.end()};
  }

  void ChooseBlocksAndTables(Module& module,
                             const std::vector<std::string>& blocks,
                             ModuleSet& chosen) {
    if (std::find(blocks.begin(), blocks.end(), module.class_name()) !=
        blocks.end()) {
      chosen.insert(&module);
      return;
    }
    for (const NamedVariable& p : module.own_parameters()) {
      if (p.variable.num_dims() >= 2 && !ignored_.Contains(p.variable)) {
        chosen.insert(&module);
      }
    }
    for (const NamedModule& child : module.Children()) {
      ChooseBlocksAndTables(*child.module, blocks, chosen);
    }
  }

  // Returns the parameters at or below `module` that are in no unit yet.
  std::vector<Variable> ChooseBySize(
      Module& module, int64_t threshold,
      std::unordered_set<const VariableImpl*>& taken, ModuleSet& chosen) {
    std::vector<Variable> remaining;
    for (const NamedVariable& p : module.own_parameters()) {
      if (ignored_.Contains(p.variable)) continue;
      if (!taken.insert(p.variable.impl().get()).second) continue;
      remaining.push_back(p.variable);
    }
    for (const NamedModule& child : module.Children()) {
      const std::vector<Variable> below =
          ChooseBySize(*child.module, threshold, taken, chosen);
      remaining.insert(remaining.end(), below.begin(), below.end());
    }
    if (module.IsContainer() || NumElements(remaining) < threshold) {
      return remaining;
    }
    chosen.insert(&module);
    return {};
  }

  Module& root_;
  const std::vector<NamedModule> modules_;
  const IgnoredSet& ignored_;
  std::vector<std::string>& warnings_;
};

// Deals the parameters out to the chosen modules; see [Note: who owns a
// parameter].
class Planner {
 public:
  Planner(Module& root, ModuleSet chosen, const IgnoredSet& ignored)
      : root_(root), chosen_(std::move(chosen)), ignored_(ignored) {
    chosen_.insert(&root);
  }

  std::vector<UnitPlan> Plan(const std::vector<JointUnit>& joint) && {
    Visit(root_);
    for (const JointUnit& unit : joint) {
      const size_t into = unit_of_[unit.modules.at(0)];
      for (const Module* m : unit.modules) Merge(into, m);
      units_[into].stays_gathered |= unit.stays_gathered;
    }
    MergeTiedUnits();
    NameUnits();
    for (const NamedVariable& p : root_.NamedParameters()) {
      if (ignored_.Contains(p.variable)) continue;
      UnitPlan& unit = units_[OwnerOf(p.variable)];
      unit.parameter_names.push_back(p.name);
      unit.parameters.push_back(p.variable);
    }
    std::vector<UnitPlan> result;
    for (UnitPlan& unit : units_) {
      if (unit.modules.empty()) continue;
      const bool is_root = unit.modules.front() == &root_;
      if (!is_root && unit.parameters.empty()) continue;
      result.push_back(std::move(unit));
    }
    return result;
  }

 private:
  // One place where a parameter is held.
  struct Use {
    const Module* holder;
    std::vector<const Module*> chain;  // Chosen modules around, root first.
  };

  // Records uses and, after the children, makes the unit.
  void Visit(Module& module) {
    const bool is_unit = chosen_.contains(&module);
    if (is_unit) chain_.push_back(&module);
    for (const NamedVariable& p : module.own_parameters()) {
      uses_[p.variable.impl().get()].push_back({&module, chain_});
    }
    for (const NamedModule& child : module.Children()) Visit(*child.module);
    if (!is_unit) return;
    chain_.pop_back();
    if (unit_of_.contains(&module)) return;
    unit_of_[&module] = units_.size();
    units_.push_back({.name = "",
                      .modules = {&module},
                      .parameter_names = {},
                      .parameters = {},
                      .stays_gathered = false});
  }

  // Units whose modules hold one tensor become one.
  void MergeTiedUnits() {
    for (const NamedVariable& p : root_.NamedParameters()) {
      if (ignored_.Contains(p.variable)) continue;
      const std::vector<Use>& uses = uses_[p.variable.impl().get()];
      const bool all_are_units =
          std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
            return use.holder != &root_ && chosen_.contains(use.holder);
          });
      if (!all_are_units) continue;
      for (const Use& use : uses) Merge(unit_of_[uses[0].holder], use.holder);
    }
  }

  void Merge(size_t into, const Module* holder) {
    const size_t from = unit_of_[holder];
    if (from == into) return;
    for (Module* module : units_[from].modules) {
      units_[into].modules.push_back(module);
      unit_of_[module] = into;
    }
    units_[from].modules.clear();
  }

  size_t OwnerOf(const Variable& parameter) {
    const std::vector<Use>& uses = uses_[parameter.impl().get()];
    // The innermost that surrounds every use.
    const std::vector<const Module*>& chain = uses[0].chain;
    for (size_t i = chain.size(); i-- > 0;) {
      const size_t unit = unit_of_[chain[i]];
      const bool around_all =
          std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
            return std::any_of(
                use.chain.begin(), use.chain.end(),
                [&](const Module* m) { return unit_of_[m] == unit; });
          });
      if (around_all) return unit;
    }
    TESSERA_CHECK(false && "the root surrounds every use");
    return 0;
  }

  void NameUnits() {
    std::unordered_map<const Module*, std::string> names;
    for (const NamedModule& m : root_.NamedModules()) {
      names[m.module] = m.name.empty() ? "(root)" : m.name;
    }
    for (UnitPlan& unit : units_) {
      if (!unit.modules.empty()) unit.name = names[unit.modules.front()];
    }
  }

  Module& root_;
  ModuleSet chosen_;
  const IgnoredSet& ignored_;
  std::vector<const Module*> chain_;
  std::unordered_map<const VariableImpl*, std::vector<Use>> uses_;
  std::unordered_map<const Module*, size_t> unit_of_;
  std::vector<UnitPlan> units_;
};

// A large root stays gathered through forward and backward.
void WarnOfLargeRoot(const std::vector<UnitPlan>& units,
                     std::vector<std::string>& warnings) {
  int64_t largest = 0;
  for (const UnitPlan& unit : units) {
    if (&unit != &units.back()) largest = std::max(largest, NumBytes(unit));
  }
  const int64_t root = NumBytes(units.back());
  if (root == 0 || root <= largest) return;
  warnings.push_back(absl::StrCat(
      "the root unit owns ", root,
      " bytes of parameters, more than the "
      "largest other unit (",
      largest,
      " bytes), and keeps them gathered "
      "through forward and backward; wrap more modules to make the peak "
      "smaller"));
}

void IgnoreBelow(Module& module, IgnoredSet& ignored) {
  for (const NamedModule& m : module.NamedModules()) {
    ignored.modules.insert(m.module);
  }
  for (const NamedVariable& p : module.NamedParameters()) {
    ignored.parameters.insert(p.variable.impl().get());
  }
}

// Whether any module or parameter has a name that `pattern` matches whole.
bool IgnoreMatches(Module& root, const std::regex& pattern,
                   IgnoredSet& ignored) {
  bool found = false;
  for (const NamedModule& m : root.NamedModules()) {
    if (m.name.empty() || !std::regex_match(m.name, pattern)) continue;
    IgnoreBelow(*m.module, ignored);
    found = true;
  }
  for (const NamedVariable& p : root.NamedParameters(true)) {
    if (!std::regex_match(p.name, pattern)) continue;
    ignored.parameters.insert(p.variable.impl().get());
    found = true;
  }
  return found;
}

}  // namespace

absl::StatusOr<IgnoredSet> FindIgnored(
    Module& root, const std::vector<Module*>& modules,
    const std::vector<std::string>& patterns) {
  IgnoredSet ignored;
  const std::vector<NamedModule> all = root.NamedModules();
  for (Module* module : modules) {
    const bool found =
        std::any_of(all.begin(), all.end(),
                    [&](const NamedModule& m) { return m.module == module; });
    if (!found) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an ignored module (",
          module == nullptr ? std::string("null") : module->class_name(),
          ") is not a part of the model"));
    }
    IgnoreBelow(*module, ignored);
  }
  ASSIGN_OR_RETURN(const std::vector<std::regex> compiled, Compile(patterns));
  for (size_t i = 0; i < compiled.size(); ++i) {
    if (IgnoreMatches(root, compiled[i], ignored)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the pattern of ignored modules \"", patterns[i],
        "\" matches no module and no parameter; patterns match whole names"));
  }
  return ignored;
}

absl::StatusOr<WrapResult> PlanUnits(Module& root, const WrapPolicy& policy,
                                     const IgnoredSet& ignored,
                                     const std::vector<JointUnit>& joint) {
  WrapResult result;
  ASSIGN_OR_RETURN(ModuleSet chosen,
                   std::visit(Chooser(root, ignored, result.warnings), policy));
  std::erase_if(chosen, [](const Module* m) { return m->IsContainer(); });
  for (const JointUnit& unit : joint) {
    if (unit.modules.empty()) {
      return absl::InvalidArgumentError(
          "joint_units: one of them has no module; give it some, or leave it "
          "out");
    }
    ASSIGN_OR_RETURN(
        const ModuleSet more,
        Chooser(root, ignored, result.warnings)(WrapModules{unit.modules}));
    chosen.insert(more.begin(), more.end());
  }
  result.units = Planner(root, std::move(chosen), ignored).Plan(joint);
  WarnOfLargeRoot(result.units, result.warnings);
  return result;
}

}  // namespace tessera
