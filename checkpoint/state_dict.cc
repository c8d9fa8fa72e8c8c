#include "checkpoint/state_dict.h"

#include <spdlog/spdlog.h>

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/persistent_buffers.h"
#include "fsdp/load_full_state_dict.h"
#include "fsdp/name_differences.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

using Entry = ModelStateDict::Entry;
using NamesOfVariable = std::map<const VariableImpl*, std::vector<std::string>>;

NamesOfVariable AllNames(FullyShardedModule& module) {
  NamesOfVariable names;
  for (const NamedVariable& p : module.module().NamedParameters(true)) {
    names[p.variable.impl().get()].push_back(p.name);
  }
  return names;
}

const std::vector<std::string>& NamesOf(const NamesOfVariable& names,
                                        const ShardedParameter& p) {
  return names.at(p.variable.impl().get());
}

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

ModelStateDict FullDict(FullyShardedModule& module,
                        const FullStateDictConfig& config) {
  ModelStateDict dict = {.type = StateDictType::kFullStateDict, .entries = {}};
  const bool keeps = !config.rank0_only || module.mesh().world()->rank() == 0;
  std::map<std::string, const std::vector<std::string>*> names;
  const NamesOfVariable all = AllNames(module);
  for (const ShardedParameter& p : module.Parameters()) {
    names[p.name] = &NamesOf(all, p);
  }
  module.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        if (!keeps) return;
        const Tensor copy = CopyOf(whole, config.offload_to_cpu);
        for (const std::string& n : *names.at(name)) {
          dict.entries.push_back({n, WholeRows(copy)});
        }
      });
  if (keeps) AddBuffers(module, config.offload_to_cpu, dict);
  return dict;
}

ModelStateDict ShardedDict(FullyShardedModule& module,
                           const ShardedStateDictConfig& config) {
  ModelStateDict dict = {.type = StateDictType::kShardedStateDict,
                         .entries = {}};
  const NamesOfVariable names = AllNames(module);
  ForEachRows(
      module, [](const ShardedParameter& p) { return p.variable.data(); },
      [&](const ShardedParameter& p, TensorRows rows) {
        if (config.offload_to_cpu &&
            rows.tensor.device().type != DeviceType::kCpu) {
          rows.tensor = CopyOf(rows.tensor, true);
        }
        for (const std::string& n : NamesOf(names, p)) {
          dict.entries.push_back({n, rows});
        }
      });
  AddBuffers(module, config.offload_to_cpu, dict);
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
  AddBuffers(module, config.offload_to_cpu, dict);
  return dict;
}

// Names and shapes that a dictionary has to have; offsets, too.
struct Wanted {
  std::string name;
  Shape global_shape;
  Dims offsets;
  Shape shape;
};

std::string DescribePart(const Shape& global, const Dims& offsets,
                         const Shape& shape) {
  std::vector<int64_t> at(offsets.begin(), offsets.end());
  return absl::StrCat(shape.ToString(), " from [", absl::StrJoin(at, ", "),
                      "] of ", global.ToString());
}

absl::Status Compare(const std::vector<Wanted>& wanted,
                     const ModelStateDict& dict) {
  NameDifferences differences;
  for (const Entry& e : dict.entries) differences.unexpected.insert(e.name);
  for (const Wanted& w : wanted) {
    differences.unexpected.erase(w.name);
    const Entry* e = dict.Find(w.name);
    if (e == nullptr) {
      differences.missing.push_back(w.name);
      continue;
    }
    const std::string has = DescribePart(e->rows.global_shape, e->rows.offsets,
                                         e->rows.tensor.shape());
    const std::string wants = DescribePart(w.global_shape, w.offsets, w.shape);
    if (has != wants) {
      differences.mismatched.push_back(
          absl::StrCat(w.name, " is ", has, ", wanted ", wants));
    }
  }
  return differences.AsStatus("state dict: it is not this rank's");
}

Wanted WantedWhole(const std::string& name, const Tensor& tensor) {
  return {name, tensor.shape(), Dims(tensor.num_dims(), 0), tensor.shape()};
}

absl::Status LoadSharded(FullyShardedModule& module,
                         const ModelStateDict& dict) {
  Communicator& world = *module.mesh().world();
  std::vector<Wanted> wanted;
  const NamesOfVariable names = AllNames(module);
  absl::Status status = Try([&] {
    module.Reshard();
    for (const ShardedParameter& p : module.Parameters()) {
      const TensorRows rows = RowsOf(module, p);
      for (const std::string& n : NamesOf(names, p)) {
        wanted.push_back(
            {n, p.global_shape, rows.offsets, ShapeOfRows(module, p)});
      }
    }
    for (const NamedBuffer& b : PersistentBuffers(module.module())) {
      wanted.push_back(WantedWhole(b.name, b.variable.data()));
    }
  });
  if (status.ok()) status = Compare(wanted, dict);
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state dict"));
  for (const ShardedParameter& p : module.Parameters()) {
    ASSIGN_OR_RETURN(const Tensor part,
                     PartOfRows(module, p, dict.Find(p.name)->rows.tensor));
    if (p.length == 0) continue;
    const Tensor data = p.variable.data();
    RETURN_IF_ERROR(Try([&] {
      ops::Copy(part, Tensor::View(data.storage(), data.storage_offset(),
                                   Shape{p.length}, data.dtype()));
    }));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    RETURN_IF_ERROR(Try(
        [&] { ops::Copy(dict.Find(b.name)->rows.tensor, b.variable.data()); }));
  }
  return world.AgreeOnStatus(absl::OkStatus(), "load state dict");
}

absl::Status CheckLocal(FullyShardedModule& module,
                        const ModelStateDict& dict) {
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
    wanted.push_back({f.name, Shape{f.length}, Dims(1, 0), Shape{f.length}});
  }
  for (const ShardedParameter& p : module.Parameters()) {
    if (p.unit < 0) wanted.push_back(WantedWhole(p.name, p.variable.data()));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    wanted.push_back(WantedWhole(b.name, b.variable.data()));
  }
  return Compare(wanted, dict);
}

absl::Status LoadLocal(FullyShardedModule& module, const ModelStateDict& dict) {
  Communicator& world = *module.mesh().world();
  absl::Status status = Try([&] { module.Reshard(); });
  if (status.ok()) status = CheckLocal(module, dict);
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state dict"));
  status = Try([&] {
    for (const FlatParameter& flat : FlatParameters(module)) {
      ForEachMember(
          flat, dict.Find(flat.name)->rows.tensor,
          [](const Tensor& from, const Tensor& to) { ops::Copy(from, to); });
    }
    for (const ShardedParameter& p : module.Parameters()) {
      if (p.unit >= 0) continue;
      ops::Copy(dict.Find(p.name)->rows.tensor, p.variable.data());
    }
    for (const NamedBuffer& b : PersistentBuffers(module.module())) {
      ops::Copy(dict.Find(b.name)->rows.tensor, b.variable.data());
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

absl::StatusOr<ModelStateDict> GetModelStateDict(FullyShardedModule& module) {
  ModelStateDict dict;
  RETURN_IF_ERROR(Try([&] {
    const StateDictSettings settings = Effective(module);
    switch (settings.type) {
      case StateDictType::kFullStateDict:
        dict = FullDict(module, std::get<FullStateDictConfig>(settings.config));
        break;
      case StateDictType::kShardedStateDict:
        dict = ShardedDict(module,
                           std::get<ShardedStateDictConfig>(settings.config));
        break;
      case StateDictType::kLocalStateDict:
        dict =
            LocalDict(module, std::get<LocalStateDictConfig>(settings.config));
        break;
    }
    for (const ShardedParameter& p : module.Parameters()) {
      ComputeStream(p.variable.device()).Synchronize();
      break;
    }
  }));
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
