#include "checkpoint/param_groups.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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

PickleDict FieldsOf(const Optimizer& optimizer, const OptimizerOptions& o) {
  DictMaker fields;
  fields.Add("lr", o.lr).Add("weight_decay", o.weight_decay);
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) {
    fields.Add("betas", PickleTuple{{o.beta1, o.beta2}})
        .Add("eps", o.eps)
        .Add("amsgrad", false)
        .Add("maximize", false)
        .Add("foreach", PickleValue())
        .Add("capturable", false)
        .Add("differentiable", false)
        .Add("fused", PickleValue())
        .Add("decoupled_weight_decay", true);
  } else if (dynamic_cast<const Sgd*>(&optimizer) != nullptr) {
    fields.Add("momentum", o.momentum)
        .Add("dampening", o.dampening)
        .Add("nesterov", o.nesterov)
        .Add("maximize", false)
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
  return absl::FailedPreconditionError(
      absl::StrCat("load optimizer: param_groups: ", what));
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

absl::Status TakeOptions(const PickleDict& group, OptimizerOptions& o) {
  RETURN_IF_ERROR(TakeNumber(group, "lr", o.lr));
  RETURN_IF_ERROR(TakeNumber(group, "weight_decay", o.weight_decay));
  RETURN_IF_ERROR(TakeNumber(group, "eps", o.eps));
  RETURN_IF_ERROR(TakeNumber(group, "momentum", o.momentum));
  RETURN_IF_ERROR(TakeNumber(group, "dampening", o.dampening));
  for (auto& [name, value] : o.extra) {
    RETURN_IF_ERROR(TakeNumber(group, name, value));
  }
  if (const PickleValue* betas = Find(group, "betas"); betas != nullptr) {
    const PickleItems* items = betas->AsItems();
    if (items == nullptr || items->size() != 2) {
      return Wrong("betas are not two numbers");
    }
    const PickleDict two = {{"0", (*items)[0]}, {"1", (*items)[1]}};
    RETURN_IF_ERROR(TakeNumber(two, "0", o.beta1));
    RETURN_IF_ERROR(TakeNumber(two, "1", o.beta2));
  }
  if (const PickleValue* nesterov = Find(group, "nesterov")) {
    o.nesterov = nesterov->AsBool().value_or(o.nesterov);
  }
  return absl::OkStatus();
}

}  // namespace

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
      return Wrong(absl::StrCat(
          p.name, " is in no saved group with ", group.parameters[0].name,
          "; make the optimizer with the groups that were saved"));
    }
    RETURN_IF_ERROR(TakeOptions(groups[g], options.back()));
  }
  return options;
}

std::string SerializeOptions(const std::vector<OptimizerOptions>& options) {
  std::vector<std::string> lines;
  for (const OptimizerOptions& o : options) {
    std::string line;
    for (const double number :
         {o.lr, o.weight_decay, o.beta1, o.beta2, o.eps, o.momentum,
          o.dampening, o.nesterov ? 1.0 : 0.0}) {
      absl::StrAppend(&line, absl::StrFormat("%.17g ", number));
    }
    for (const auto& [name, number] : o.extra) {
      absl::StrAppend(&line, name, absl::StrFormat(" %.17g ", number));
    }
    lines.push_back(line);
  }
  return absl::StrJoin(lines, "\n");
}

absl::StatusOr<std::vector<OptimizerOptions>> ParseOptions(
    const std::string& text) {
  std::vector<OptimizerOptions> options;
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    OptimizerOptions o;
    double nesterov = 0;
    double* const numbers[] = {&o.lr,        &o.weight_decay, &o.beta1,
                               &o.beta2,     &o.eps,          &o.momentum,
                               &o.dampening, &nesterov};
    bool ok = words.size() >= std::size(numbers);
    for (size_t i = 0; ok && i < std::size(numbers); ++i) {
      ok = absl::SimpleAtod(words[i], numbers[i]);
    }
    for (size_t i = std::size(numbers); ok && i + 1 < words.size(); i += 2) {
      ok = absl::SimpleAtod(words[i + 1], &o.extra[words[i]]);
    }
    if (!ok) return Wrong(absl::StrCat("rank 0 sent \"", line, "\""));
    o.nesterov = nesterov != 0;
    options.push_back(std::move(o));
  }
  return options;
}

}  // namespace tessera
