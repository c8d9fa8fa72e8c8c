#include "runtime/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/nn/name_pattern.h"

namespace tessera {
namespace {

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(absl::InvalidArgumentError("LoRA: " + message));
}

void Require(bool condition, const std::string& message) {
  if (!condition) Refuse(message);
}

bool Fits(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

std::string LastPart(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

bool FitsAny(const std::string& module,
             const std::vector<std::string>& targets) {
  return std::any_of(
      targets.begin(), targets.end(),
      [&](const std::string& target) { return Fits(module, target); });
}

bool IsHead(Module& module) {
  return dynamic_cast<LanguageModelHead*>(&module) != nullptr;
}

// Whether a module of this name is meant.
using Chooser = std::function<bool(const NamedModule& module)>;

Chooser ChooserOf(const LoraConfig& config) {
  if (config.target_pattern.empty()) {
    return [&config](const NamedModule& m) {
      return FitsAny(m.name, config.target_modules);
    };
  }
  if (config.target_pattern == "all-linear") {
    return [](const NamedModule& m) {
      return dynamic_cast<AffineLayer*>(m.module) != nullptr &&
             !IsHead(*m.module);
    };
  }
  const absl::StatusOr<NamePattern> pattern =
      NamePattern::Create(config.target_pattern);
  if (!pattern.ok()) {
    Refuse(absl::StrCat("target_modules: ",
                        std::string(pattern.status().message())));
  }
  return [pattern = *pattern](const NamedModule& m) {
    return pattern.Matches(m.name);
  };
}

// The last parts of the names of layers that could be adapted, for an error.
std::string LayersToChooseFrom(const std::vector<NamedModule>& modules) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const NamedModule& m : modules) {
    if (dynamic_cast<AffineLayer*>(m.module) == nullptr || IsHead(*m.module)) {
      continue;
    }
    const std::string last = LastPart(m.name);
    if (seen.insert(last).second) names.push_back(last);
  }
  return absl::StrJoin(names, ", ");
}

void CheckTargetsExist(const std::vector<NamedModule>& modules,
                       const LoraConfig& config) {
  for (const std::string& target : config.target_modules) {
    const bool found =
        std::any_of(modules.begin(), modules.end(),
                    [&](const NamedModule& m) { return Fits(m.name, target); });
    if (found) continue;
    Refuse(absl::StrCat("target_modules: the model has no module \"", target,
                        "\"; there are ", LayersToChooseFrom(modules)));
  }
}

// Ends of names where they choose the same layers, else all names.
LoraConfig WithNames(CausalLM& model, const LoraConfig& config,
                     const std::vector<std::string>& targets) {
  if (config.target_pattern.empty()) return config;
  LoraConfig named = config;
  named.target_pattern.clear();
  for (const std::string& target : targets) {
    if (FitsAny(target, named.target_modules)) continue;
    named.target_modules.push_back(LastPart(target));
  }
  // The ends may also choose what has no adapter, which is an error.
  bool same = false;
  (void)Try([&] { same = LoraTargets(model, named) == targets; });
  if (!same) named.target_modules = targets;
  return named;
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

void CheckConfig(const LoraConfig& config) {
  Require(config.rank > 0 && config.rank <= kLargestModelSize,
          absl::StrCat("the rank is ", config.rank, ", not positive, or huge"));
  Require(std::isfinite(config.alpha),
          absl::StrCat("alpha is ", config.alpha, ", not a number"));
  Require(config.dropout >= 0 && config.dropout < 1,
          absl::StrCat("dropout is ", config.dropout, ", not in [0, 1)"));
  Require(
      config.target_modules.empty() != config.target_pattern.empty(),
      "wanted target_modules as names or as a pattern, got neither or both");
}

std::vector<std::string> DefaultLoraTargets(const CausalLM& model) {
  if (model.class_name() == "GPT2LMHeadModel") return {"c_attn"};
  return {"q_proj", "v_proj"};
}

std::vector<std::string> LoraTargets(CausalLM& model,
                                     const LoraConfig& config) {
  CheckConfig(config);
  const std::vector<NamedModule> modules = model.NamedModules();
  CheckTargetsExist(modules, config);
  const Chooser chosen = ChooserOf(config);
  std::vector<std::string> names;
  for (const NamedModule& m : modules) {
    if (!chosen(m) || FitsAny(m.name, config.exclude_modules)) continue;
    Require(dynamic_cast<AffineLayer*>(m.module) != nullptr,
            absl::StrCat("target_modules: ", m.name, " is a ",
                         m.module->class_name(),
                         "; only linear layers have adapters: ",
                         LayersToChooseFrom(modules)));
    Require(!IsHead(*m.module),
            absl::StrCat("target_modules: ", m.name,
                         " is the head, which has no adapter here"));
    names.push_back(m.name);
  }
  Require(!names.empty(),
          absl::StrCat("target_modules choose no layer; there are ",
                       LayersToChooseFrom(modules)));
  return names;
}

LoraConfig AddLora(CausalLM& model, const LoraConfig& config) {
  const std::vector<std::string> targets = LoraTargets(model, config);
  const std::set<std::string> chosen(targets.begin(), targets.end());
  model.RequiresGrad(false);
  const LowRankOptions options = {config.rank, config.scale(), config.dropout};
  for (const NamedModule& m : model.NamedModules()) {
    if (!chosen.contains(m.name)) continue;
    dynamic_cast<AffineLayer&>(*m.module).AddLowRank(options, m.name);
  }
  return WithNames(model, config, targets);
}

void MergeLora(Module& model) {
  for (const NamedModule& m : model.NamedModules()) {
    auto* layer = dynamic_cast<AffineLayer*>(m.module);
    if (layer != nullptr) layer->MergeLowRank();
  }
}

bool IsLoraParameter(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

void InitializeLora(Module& model, uint64_t seed) {
  InitializedSet done;
  for (const NamedModule& m : model.NamedModules()) {
    if (dynamic_cast<LowRankProjection*>(m.module) == nullptr) continue;
    m.module->ResetParameters(Initializer(seed, m.name, &done));
  }
}

}  // namespace tessera
