#include "checkpoint/param_groups.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"

namespace tessera {
namespace {

// Not a macro's or an initializer list's business: values are copied there.
class DictMaker {
 public:
  DictMaker& Add(const char* key, PickleValue value) {
    dict_.emplace_back(PickleValue(key), std::move(value));
    return *this;
  }
  PickleDict Take() && { return std::move(dict_); }

 private:
  PickleDict dict_;
};

void AddAdamFields(const OptimizerOptions& o, DictMaker& fields) {
  fields.Add("betas", PickleTuple{{o.beta1, o.beta2}}).Add("eps", o.eps);
}

void AddSgdFields(const OptimizerOptions& o, DictMaker& fields) {
  fields.Add("momentum", o.momentum)
      .Add("dampening", o.dampening)
      .Add("nesterov", o.nesterov);
}

PickleDict FieldsOf(const Optimizer& optimizer, const OptimizerOptions& o) {
  const TorchOptimizer kind = TorchOptimizerOf(optimizer);
  DictMaker fields;
  fields.Add("lr", o.lr).Add("weight_decay", o.weight_decay);
  if (kind != TorchOptimizer::kSgd) AddAdamFields(o, fields);
  if (kind != TorchOptimizer::kAdamW) AddSgdFields(o, fields);
  if (kind == TorchOptimizer::kAdamW) {
    fields.Add("amsgrad", false)
        .Add("capturable", false)
        .Add("decoupled_weight_decay", true);
  }
  if (kind != TorchOptimizer::kNone) {
    fields.Add("maximize", false)
        .Add("foreach", PickleValue())
        .Add("differentiable", false)
        .Add("fused", PickleValue());
  }
  for (const auto& [name, value] : o.extra) fields.Add(name.c_str(), value);
  return std::move(fields).Take();
}

const PickleValue* Find(const PickleDict& dict, const std::string& key) {
  for (const auto& [k, value] : dict) {
    const std::string* text = k.AsString();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

std::set<std::string> NamesIn(const PickleDict& group) {
  std::set<std::string> names;
  const PickleValue* params = Find(group, "params");
  if (params == nullptr || params->AsItems() == nullptr) return names;
  for (const PickleValue& item : *params->AsItems()) {
    if (item.AsString() != nullptr) names.insert(*item.AsString());
  }
  return names;
}

absl::Status Wrong(const std::string& what) {
  return absl::FailedPreconditionError(what);
}

absl::Status TakeNumber(const PickleDict& group, const std::string& key,
                        double& number) {
  const PickleValue* value = Find(group, key);
  if (value == nullptr) return absl::OkStatus();
  const Tensor* tensor = value->AsTensor();
  if (tensor != nullptr && tensor->num_elements() == 1) {
    number = tensor->Item();
    return absl::OkStatus();
  }
  const std::optional<double> plain = value->AsNumber();
  if (!plain.has_value()) {
    return Wrong(
        absl::StrCat(key, " is ", value->Describe(), ", wanted a number"));
  }
  number = *plain;
  return absl::OkStatus();
}

// Of a field that is missing, or None, what it is without it.
absl::StatusOr<bool> FlagIn(const PickleDict& group, const std::string& key,
                            bool missing) {
  const PickleValue* value = Find(group, key);
  if (value == nullptr || value->is_none()) return missing;
  if (const auto flag = value->AsBool()) return *flag;
  if (const auto number = value->AsNumber()) return *number != 0;
  return Wrong(
      absl::StrCat(key, " is ", value->Describe(), ", wanted True or False"));
}

// An update that ours is not would go on with other steps than before.
absl::Status RefuseOtherUpdates(TorchOptimizer kind, const PickleDict& group,
                                const OptimizerOptions& o) {
  for (const char* key : {"amsgrad", "maximize"}) {
    if (o.extra.contains(key)) continue;  // It knows it.
    ASSIGN_OR_RETURN(const bool is_set, FlagIn(group, key, false));
    if (is_set) {
      return Wrong(absl::StrCat(key, " is True, which is not supported"));
    }
  }
  if (kind == TorchOptimizer::kAdamW) {
    ASSIGN_OR_RETURN(const bool decoupled,
                     FlagIn(group, "decoupled_weight_decay", true));
    if (!decoupled && o.weight_decay != 0) {
      return Wrong(
          absl::StrCat("decoupled_weight_decay is False, as of Adam, with a "
                       "weight_decay of ",
                       o.weight_decay, "; only AdamW's is supported"));
    }
  }
  if (kind == TorchOptimizer::kSgd && o.nesterov &&
      (o.momentum <= 0 || o.dampening != 0)) {
    return Wrong(absl::StrCat("nesterov is True with momentum ", o.momentum,
                              " and dampening ", o.dampening,
                              "; it needs momentum > 0 and dampening 0"));
  }
  return absl::OkStatus();
}

absl::Status TakeBetas(const PickleDict& group, OptimizerOptions& o) {
  const PickleValue* betas = Find(group, "betas");
  if (betas == nullptr) return absl::OkStatus();
  const PickleItems* items = betas->AsItems();
  if (items == nullptr || items->size() != 2) {
    return Wrong(
        absl::StrCat("betas is ", betas->Describe(), ", wanted two numbers"));
  }
  const PickleDict two = {{"betas[0]", (*items)[0]}, {"betas[1]", (*items)[1]}};
  RETURN_IF_ERROR(TakeNumber(two, "betas[0]", o.beta1));
  return TakeNumber(two, "betas[1]", o.beta2);
}

absl::Status TakeOptions(TorchOptimizer kind, const PickleDict& group,
                         OptimizerOptions& o) {
  RETURN_IF_ERROR(TakeNumber(group, "lr", o.lr));
  RETURN_IF_ERROR(TakeNumber(group, "weight_decay", o.weight_decay));
  RETURN_IF_ERROR(TakeNumber(group, "eps", o.eps));
  RETURN_IF_ERROR(TakeNumber(group, "momentum", o.momentum));
  RETURN_IF_ERROR(TakeNumber(group, "dampening", o.dampening));
  for (auto& [name, value] : o.extra) {
    RETURN_IF_ERROR(TakeNumber(group, name, value));
  }
  RETURN_IF_ERROR(TakeBetas(group, o));
  ASSIGN_OR_RETURN(o.nesterov, FlagIn(group, "nesterov", o.nesterov));
  return RefuseOtherUpdates(kind, group, o);
}

}  // namespace

TorchOptimizer TorchOptimizerOf(const Optimizer& optimizer) {
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) {
    return TorchOptimizer::kAdamW;
  }
  return dynamic_cast<const Sgd*>(&optimizer) != nullptr
             ? TorchOptimizer::kSgd
             : TorchOptimizer::kNone;
}

std::vector<PickleDict> ParamGroupsOf(const Optimizer& optimizer) {
  std::vector<PickleDict> groups;
  for (const ParameterGroup& group : optimizer.groups()) {
    PickleDict fields = FieldsOf(optimizer, group.options);
    PickleList names;
    for (const OptimizerParameter& p : group.parameters) {
      names.items.emplace_back(p.name);
    }
    fields.emplace_back("params", std::move(names));
    groups.push_back(std::move(fields));
  }
  return groups;
}

absl::StatusOr<std::vector<OptimizerOptions>> OptionsOfParamGroups(
    const Optimizer& optimizer, const std::vector<PickleDict>& groups) {
  std::vector<std::set<std::string>> names;
  names.reserve(groups.size());
  for (const PickleDict& group : groups) names.push_back(NamesIn(group));
  std::vector<OptimizerOptions> options;
  for (const ParameterGroup& group : optimizer.groups()) {
    options.push_back(group.options);
    if (group.parameters.empty()) continue;
    size_t g = 0;
    while (g < groups.size() && !names[g].contains(group.parameters[0].name)) {
      ++g;
    }
    for (const OptimizerParameter& p : group.parameters) {
      if (g < groups.size() && names[g].contains(p.name)) continue;
      return Wrong(
          absl::StrCat("load optimizer: param_groups: ", p.name,
                       " is in no saved group with ", group.parameters[0].name,
                       "; make the optimizer with the groups that were saved"));
    }
    const absl::Status taken =
        TakeOptions(TorchOptimizerOf(optimizer), groups[g], options.back());
    if (!taken.ok()) {
      return Annotate(taken,
                      absl::StrCat("load optimizer: param_groups[", g, "]"));
    }
  }
  return options;
}

nlohmann::json OptionsToJson(const std::vector<OptimizerOptions>& options) {
  nlohmann::json json = nlohmann::json::array();
  for (const OptimizerOptions& o : options) {
    json.push_back({o.lr, o.weight_decay, o.beta1, o.beta2, o.eps, o.momentum,
                    o.dampening, o.nesterov, o.extra});
  }
  return json;
}

std::vector<OptimizerOptions> OptionsFromJson(const nlohmann::json& json) {
  std::vector<OptimizerOptions> options;
  for (const nlohmann::json& item : json) {
    OptimizerOptions& o = options.emplace_back();
    double* const numbers[] = {&o.lr,  &o.weight_decay, &o.beta1,    &o.beta2,
                               &o.eps, &o.momentum,     &o.dampening};
    size_t i = 0;
    for (double* number : numbers) *number = item.at(i++).get<double>();
    o.nesterov = item.at(i++).get<bool>();
    o.extra = item.at(i).get<std::map<std::string, double>>();
  }
  return options;
}

}  // namespace tessera
