#include "checkpoint/state_dict.h"

#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/persistent_buffers.h"
#include "fsdp/load_full_state_dict.h"
#include "fsdp/name_differences.h"
#include "fsdp/parameter_names.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

using Entry = ModelStateDict::Entry;
TensorRows WholeRows(const Tensor& tensor) {
  return {tensor.shape(), Dims(tensor.num_dims(), 0), tensor};
}

void AddBuffers(FullyShardedModule& module, bool offload,
                ModelStateDict& dict) {
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    dict.entries.push_back(
        {b.name, WholeRows(CopyOf(b.variable.data(), offload))});
  }
}

// What one rank throws in it, for one of them, all ranks throw.
ModelStateDict FullDict(FullyShardedModule& module,
                        const FullStateDictConfig& config) {
  ModelStateDict dict = {.type = StateDictType::kFullStateDict, .entries = {}};
  const bool keeps = !config.rank0_only || module.mesh().world()->rank() == 0;
  std::map<std::string, const std::vector<std::string>*> names;
  const ParameterNames all(module.module());
  for (const ShardedParameter& p : module.Parameters()) {
    names[p.name] = &all.Of(p.variable);
  }
  module.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        if (!keeps) return;
        const Tensor copy = CopyOf(whole, config.offload_to_cpu);
        for (const std::string& n : *names.at(name)) {
          dict.entries.push_back({n, WholeRows(copy)});
        }
      });
  return dict;
}

// The same.
ModelStateDict ShardedDict(FullyShardedModule& module,
                           const ShardedStateDictConfig& config) {
  ModelStateDict dict = {.type = StateDictType::kShardedStateDict,
                         .entries = {}};
  const ParameterNames names(module.module());
  ForEachRows(
      module, [](const ShardedParameter& p) { return p.variable.data(); },
      [&](const ShardedParameter& p, TensorRows rows) {
        if (config.offload_to_cpu &&
            rows.tensor.device().type != DeviceType::kCpu) {
          rows.tensor = CopyOf(rows.tensor, true);
        }
        for (const std::string& n : names.Of(p.variable)) {
          dict.entries.push_back({n, rows});
        }
      });
  return dict;
}

// What one entry of a local dictionary is made of.
struct FlatParameter {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<const ShardedParameter*> members;
  int64_t length = 0;
};

std::vector<FlatParameter> FlatParameters(const FullyShardedModule& module) {
  const std::vector<std::string> units = module.unit_names();
  std::map<std::pair<int, DType>, FlatParameter> flat;
  std::map<int, DType> first_type;
  for (const ShardedParameter& p : module.Parameters()) {
    if (p.unit < 0) continue;
    const DType dtype = p.variable.dtype();
    first_type.emplace(p.unit, dtype);
    FlatParameter& f = flat[{p.unit, dtype}];
    const std::string& unit = units.at(p.unit);
    f.name = absl::StrCat(
        unit == "(root)" ? "" : absl::StrCat(unit, "."), "_flat_param",
        dtype == first_type[p.unit] ? "" : absl::StrCat(".", DTypeName(dtype)));
    f.dtype = dtype;
    f.members.push_back(&p);
    f.length += p.length;
  }
  std::vector<FlatParameter> result;
  result.reserve(flat.size());
  for (auto& [key, f] : flat) result.push_back(std::move(f));
  return result;
}

std::string LayoutOf(FullyShardedModule& module) {
  const Communicator& world = *module.mesh().world();
  std::string text =
      absl::StrCat("rank ", world.rank(), " of ", world.world_size());
  for (const FlatParameter& f : FlatParameters(module)) {
    absl::StrAppend(&text, "\n", f.name, ":");
    for (const ShardedParameter* p : f.members) {
      absl::StrAppend(&text, " ", p->name, " ", p->begin, "+", p->length);
    }
  }
  return text;
}

// Calls f(part of the flat tensor, part of the parameter).
void ForEachMember(const FlatParameter& flat, const Tensor& tensor,
                   const std::function<void(const Tensor&, const Tensor&)>& f) {
  int64_t at = 0;
  for (const ShardedParameter* p : flat.members) {
    if (p->length == 0) continue;
    const Tensor data = p->variable.data();
    f(tensor.Narrow(0, at, p->length),
      Tensor::View(data.storage(), data.storage_offset(), Shape{p->length},
                   data.dtype()));
    at += p->length;
  }
}

ModelStateDict LocalDict(FullyShardedModule& module,
                         const LocalStateDictConfig& config) {
  module.Reshard();
  ModelStateDict dict = {.type = StateDictType::kLocalStateDict,
                         .entries = {},
                         .layout = LayoutOf(module)};
  for (const FlatParameter& flat : FlatParameters(module)) {
    const Device device = flat.members[0]->variable.device();
    Tensor tensor = Tensor::Empty({flat.length}, {flat.dtype, device});
    ForEachMember(flat, tensor, [](const Tensor& to, const Tensor& from) {
      ops::Copy(from, to);
    });
    if (config.offload_to_cpu) tensor = CopyOf(tensor, true);
    dict.entries.push_back({flat.name, WholeRows(tensor)});
  }
  for (const ShardedParameter& p : module.Parameters()) {
    if (p.unit >= 0) continue;
    dict.entries.push_back(
        {p.name, WholeRows(CopyOf(p.variable.data(), config.offload_to_cpu))});
  }
  return dict;
}

// The entries that a dictionary has to have.
struct Wanted {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape global_shape;
  Dims offsets;
  Shape shape;
};

std::string DescribePart(const Wanted& part) {
  return absl::StrCat(IsFloating(part.dtype) ? "floating " : "integer ",
                      part.shape.ToString(), " from [",
                      absl::StrJoin(part.offsets, ", "), "] of ",
                      part.global_shape.ToString());
}

using EntriesByName = std::map<std::string, const Entry*>;

EntriesByName ByName(const ModelStateDict& dict) {
  EntriesByName entries;
  for (const Entry& e : dict.entries) entries.emplace(e.name, &e);
  return entries;
}

absl::Status Compare(const std::vector<Wanted>& wanted,
                     const EntriesByName& entries) {
  NameDifferences differences;
  for (const auto& [name, entry] : entries) differences.unexpected.insert(name);
  for (const Wanted& w : wanted) {
    differences.unexpected.erase(w.name);
    const auto found = entries.find(w.name);
    if (found == entries.end()) {
      differences.missing.push_back(w.name);
      continue;
    }
    const TensorRows& rows = found->second->rows;
    const std::string has =
        DescribePart({w.name, rows.tensor.dtype(), rows.global_shape,
                      rows.offsets, rows.tensor.shape()});
    const std::string wants = DescribePart(w);
    if (has != wants) {
      differences.mismatched.push_back(
          absl::StrCat(w.name, " is ", has, ", wanted ", wants));
    }
  }
  return differences.AsStatus("state dict: it is not this rank's");
}

Wanted WantedWhole(const std::string& name, const Tensor& tensor) {
  return {name, tensor.dtype(), tensor.shape(), Dims(tensor.num_dims(), 0),
          tensor.shape()};
}

absl::Status CheckSharded(FullyShardedModule& module,
                          const EntriesByName& entries) {
  std::vector<Wanted> wanted;
  const ParameterNames names(module.module());
  for (const ShardedParameter& p : module.Parameters()) {
    const TensorRows rows = RowsOf(module, p);
    for (const std::string& n : names.Of(p.variable)) {
      wanted.push_back({n, p.variable.dtype(), p.global_shape, rows.offsets,
                        ShapeOfRows(module, p)});
    }
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    wanted.push_back(WantedWhole(b.name, b.variable.data()));
  }
  return Compare(wanted, entries);
}

absl::Status LoadSharded(FullyShardedModule& module,
                         const ModelStateDict& dict) {
  Communicator& world = *module.mesh().world();
  const EntriesByName entries = ByName(dict);
  RETURN_IF_ERROR(world.AgreeOnStatus(Try([&] {
                                        module.Reshard();
                                        return CheckSharded(module, entries);
                                      }),
                                      "load state dict"));
  absl::Status status;  // Of this rank; it must not end the others' gathers.
  const auto note = [&](const absl::Status& next) {
    if (status.ok()) status = next;
  };
  for (const ShardedParameter& p : module.Parameters()) {
    const auto part = PartOfRows(module, p, entries.at(p.name)->rows.tensor);
    note(part.status());
    if (!part.ok() || p.length == 0) continue;
    const Tensor data = p.variable.data();
    note(Try([&] {
      ops::Copy(*part, Tensor::View(data.storage(), data.storage_offset(),
                                    Shape{p.length}, data.dtype()));
    }));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    note(Try([&] {
      ops::Copy(entries.at(b.name)->rows.tensor, b.variable.data());
    }));
  }
  return world.AgreeOnStatus(status, "load state dict");
}

absl::Status CheckLocal(FullyShardedModule& module, const ModelStateDict& dict,
                        const EntriesByName& entries) {
  const std::string layout = LayoutOf(module);
  if (!dict.layout.empty() && dict.layout != layout) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state dict: a local one fits the layout that it was saved from alone; "
        "it is of\n",
        dict.layout, "\nand the model is\n", layout,
        "\nsave a sharded or a full one to change ranks or units"));
  }
  std::vector<Wanted> wanted;
  for (const FlatParameter& f : FlatParameters(module)) {
    const Shape length = {f.length};
    wanted.push_back({f.name, f.dtype, length, Dims(1, 0), length});
  }
  for (const ShardedParameter& p : module.Parameters()) {
    if (p.unit < 0) wanted.push_back(WantedWhole(p.name, p.variable.data()));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    wanted.push_back(WantedWhole(b.name, b.variable.data()));
  }
  return Compare(wanted, entries);
}

absl::Status LoadLocal(FullyShardedModule& module, const ModelStateDict& dict) {
  Communicator& world = *module.mesh().world();
  const EntriesByName entries = ByName(dict);
  absl::Status status = Try([&] {
    module.Reshard();
    return CheckLocal(module, dict, entries);
  });
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state dict"));
  status = Try([&] {
    for (const FlatParameter& flat : FlatParameters(module)) {
      ForEachMember(
          flat, entries.at(flat.name)->rows.tensor,
          [](const Tensor& from, const Tensor& to) { ops::Copy(from, to); });
    }
    for (const ShardedParameter& p : module.Parameters()) {
      if (p.unit >= 0) continue;
      ops::Copy(entries.at(p.name)->rows.tensor, p.variable.data());
    }
    for (const NamedBuffer& b : PersistentBuffers(module.module())) {
      ops::Copy(entries.at(b.name)->rows.tensor, b.variable.data());
    }
  });
  return world.AgreeOnStatus(status, "load state dict");
}

absl::Status LoadFull(FullyShardedModule& module, const ModelStateDict& dict,
                      const FullStateDictConfig& config) {
  FullStateDict whole;
  for (const Entry& e : dict.entries) whole[e.name] = e.rows.tensor;
  return LoadFullStateDict(module, whole, {.from_rank0 = config.rank0_only});
}

// Where nothing is sharded there is nothing but full dictionaries.
StateDictSettings Effective(FullyShardedModule& module) {
  StateDictSettings settings = module.state_dict_settings();
  if (settings.type != StateDictType::kFullStateDict && !IsSharded(module)) {
    if (module.mesh().world()->rank() == 0) {
      spdlog::warn("state dict: nothing is sharded, so {} is FULL_STATE_DICT",
                   StateDictTypeName(settings.type));
    }
    settings.type = StateDictType::kFullStateDict;
    settings.config = FullStateDictConfig();
  }
  return settings;
}

}  // namespace

const ModelStateDict::Entry* ModelStateDict::Find(
    const std::string& name) const {
  for (const Entry& e : entries) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

namespace {

// Parameters alone. An error is the same on all ranks.
absl::StatusOr<ModelStateDict> DictOfParameters(
    FullyShardedModule& module, const StateDictSettings& settings) {
  ModelStateDict dict;
  const absl::Status status = Try([&] {
    if (settings.type == StateDictType::kFullStateDict) {
      dict = FullDict(module, std::get<FullStateDictConfig>(settings.config));
    } else if (settings.type == StateDictType::kShardedStateDict) {
      dict = ShardedDict(module,
                         std::get<ShardedStateDictConfig>(settings.config));
    } else {
      dict = LocalDict(module, std::get<LocalStateDictConfig>(settings.config));
    }
  });
  if (settings.type == StateDictType::kLocalStateDict) {
    RETURN_IF_ERROR(
        module.mesh().world()->AgreeOnStatus(status, "local state dict"));
  }
  if (!status.ok()) return status;
  return dict;
}

// Whether this rank's dictionary has entries, and whether they leave the
// device.
struct Keeps {
  bool entries = true;
  bool offload = false;
};

Keeps WhatIsKept(FullyShardedModule& module,
                 const StateDictSettings& settings) {
  return std::visit(
      [&](const auto& config) {
        Keeps keeps = {.offload = config.offload_to_cpu};
        if constexpr (requires { config.rank0_only; }) {
          keeps.entries =
              !config.rank0_only || module.mesh().world()->rank() == 0;
        }
        return keeps;
      },
      settings.config);
}

}  // namespace

absl::StatusOr<ModelStateDict> GetModelStateDict(FullyShardedModule& module) {
  const StateDictSettings settings = Effective(module);
  ASSIGN_OR_RETURN(ModelStateDict dict, DictOfParameters(module, settings));
  const Keeps keeps = WhatIsKept(module, settings);
  const absl::Status status = Try([&] {
    if (keeps.entries) AddBuffers(module, keeps.offload, dict);
    for (const ShardedParameter& p : module.Parameters()) {
      ComputeStream(p.variable.device()).Synchronize();
      break;
    }
  });
  RETURN_IF_ERROR(
      module.mesh().world()->AgreeOnStatus(status, "state dict of buffers"));
  return dict;
}

absl::Status LoadModelStateDict(FullyShardedModule& module,
                                const ModelStateDict& dict) {
  const StateDictSettings settings = Effective(module);
  absl::Status status;
  const bool empty = dict.entries.empty();
  if (!empty && dict.type != settings.type) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "state dict: ", StateDictTypeName(settings.type),
        " is set, got a dictionary of ", StateDictTypeName(dict.type),
        "; set the type that it was made with"));
  }
  RETURN_IF_ERROR(
      module.mesh().world()->AgreeOnStatus(status, "load state dict"));
  switch (settings.type) {
    case StateDictType::kFullStateDict:
      return LoadFull(module, dict,
                      std::get<FullStateDictConfig>(settings.config));
    case StateDictType::kShardedStateDict:
      return LoadSharded(module, dict);
    case StateDictType::kLocalStateDict:
      break;
  }
  return LoadLocal(module, dict);
}

}  // namespace tessera
