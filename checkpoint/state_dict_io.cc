#include "checkpoint/state_dict_io.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/optimizer_file_source.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/save_distributed.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_weights.h"
#include "checkpoint/torch/torch_writer.h"
#include "fsdp/parameter_names.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kLayout[] = "_layout";  // Of local dictionaries.

std::string Suffix(int index) {
  return index == 0 ? "" : absl::StrCat("_", index);
}

Communicator& WorldOf(FullyShardedModule& module) {
  return *module.mesh().world();
}

// The folder of a distributed checkpoint: inside of `folder`, or itself.
std::string Resolve(const std::string& folder, const std::string& name) {
  fs::path path(folder);
  if (path.filename().empty()) path = path.parent_path();
  return path.filename() == name ? path.string() : (path / name).string();
}

bool IsFolder(StateDictType type, const StateDictFile& file) {
  return type == StateDictType::kShardedStateDict && file.use_dcp;
}

absl::Status WriteOn(Communicator& world, bool writes, const std::string& path,
                     const PickleValue& value) {
  return world.AgreeOnStatus(
      writes ? WriteTorchFile(path, value) : absl::OkStatus(),
      "save state dict");
}

absl::Status MakeFolder(Communicator& world, const std::string& folder) {
  return world.AgreeOnStatus(MakeFolders(folder), "save state dict");
}

void WarnOfOverwriting(Communicator& world, const std::string& folder) {
  std::error_code ignored;
  if (world.rank() == 0 &&
      fs::exists(fs::path(folder) / kDistributedMetadataName, ignored)) {
    spdlog::warn("save state dict: {} is overwritten", folder);
  }
}

// A tensor of no dims that another rank has is no piece.
bool IsPiece(const TensorRows& rows) {
  return rows.global_shape.num_dims() == rows.tensor.num_dims();
}

PickleDict AsPickle(const ModelStateDict& dict) {
  PickleDict pickle;
  for (const ModelStateDict::Entry& e : dict.entries) {
    pickle.emplace_back(e.name, e.rows.tensor);
  }
  if (!dict.layout.empty()) pickle.emplace_back(kLayout, dict.layout);
  return pickle;
}

PickleDict AsPickle(const OptimizerStateDict& dict) {
  PickleDict states;
  for (const OptimizerStateDict::Entry& e : dict.entries) {
    if (states.empty() || *states.back().first.AsString() != e.parameter) {
      states.emplace_back(e.parameter, PickleDict());
    }
    states.back().second.AsDict()->emplace_back(e.state, e.rows.tensor);
  }
  PickleList groups;
  for (const PickleDict& group : dict.param_groups) {
    groups.items.emplace_back(group);
  }
  PickleDict pickle;
  pickle.emplace_back("state", std::move(states));
  pickle.emplace_back("param_groups", std::move(groups));
  return pickle;
}

absl::Status SaveFolder(Communicator& world, const std::string& folder,
                        const ModelStateDict& dict) {
  std::vector<DistributedPiece> pieces;
  for (const ModelStateDict::Entry& e : dict.entries) {
    if (!IsPiece(e.rows)) continue;
    pieces.push_back({{"model", e.name},
                      e.rows.global_shape,
                      e.rows.offsets,
                      e.rows.tensor});
  }
  WarnOfOverwriting(world, folder);
  return SaveDistributed(world, folder, pieces, {});
}

absl::Status SaveFolder(Communicator& world, const std::string& folder,
                        const OptimizerStateDict& dict) {
  std::vector<DistributedPiece> pieces;
  for (const OptimizerStateDict::Entry& e : dict.entries) {
    if (!IsPiece(e.rows)) continue;
    pieces.push_back({{"optimizer", "state", e.parameter, e.state},
                      e.rows.global_shape,
                      e.rows.offsets,
                      e.rows.tensor});
  }
  std::vector<DistributedValue> values;
  for (size_t g = 0; g < dict.param_groups.size(); ++g) {
    for (const auto& [field, value] : dict.param_groups[g]) {
      values.push_back({{"optimizer", "param_groups", static_cast<int64_t>(g),
                         *field.AsString()},
                        value});
    }
  }
  WarnOfOverwriting(world, folder);
  return SaveDistributed(world, folder, pieces, values);
}

absl::StatusOr<bool> Exists(const std::string& path) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), path);
  return exists;
}

// What this rank's own file holds. Files are for as many ranks as wrote them.
absl::StatusOr<PickleValue> ReadRankFile(const std::string& path,
                                         const std::string& next_path) {
  ASSIGN_OR_RETURN(const bool exists, Exists(path));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(
        path,
        ": there is no such file; files a rank are for as many ranks as "
        "saved them"));
  }
  ASSIGN_OR_RETURN(const bool more, Exists(next_path));
  if (more) {
    return absl::FailedPreconditionError(absl::StrCat(
        next_path,
        ": there is a file of a rank that this run does not have; files a rank "
        "are for as many ranks as saved them"));
  }
  ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(path));
  return file.ReadValue();
}

// The rows that a file's tensor stands for, when it has their shape.
TensorRows AsRows(FullyShardedModule& module, const ShardedParameter* p,
                  const Tensor& read) {
  const Tensor tensor =
      module.Parameters().empty()
          ? read
          : OnDevice(read, module.Parameters()[0].variable.device());
  if (p != nullptr && tensor.shape() == ShapeOfRows(module, *p)) {
    TensorRows rows = RowsOf(module, *p);
    rows.tensor = tensor;
    return rows;
  }
  return {tensor.shape(), Dims(tensor.num_dims(), 0), tensor};
}

using Parameters = std::map<std::string, const ShardedParameter*>;

Parameters ByEachName(FullyShardedModule& module) {
  const ParameterNames names(module.module());
  Parameters parameters;
  for (const ShardedParameter& p : module.Parameters()) {
    for (const std::string& name : names.Of(p.variable)) parameters[name] = &p;
  }
  return parameters;
}

absl::StatusOr<ModelStateDict> ModelDictOf(FullyShardedModule& module,
                                           StateDictType type,
                                           const PickleValue& value) {
  ModelStateDict dict = {
      .type = IsSharded(module) ? type : StateDictType::kFullStateDict,
      .entries = {}};
  const Parameters parameters = type == StateDictType::kShardedStateDict
                                    ? ByEachName(module)
                                    : Parameters();
  if (value.AsDict() == nullptr) {
    return absl::FailedPreconditionError(
        "load state dict: the file is no dictionary");
  }
  for (const auto& [key, item] : *value.AsDict()) {
    const std::string* name = key.AsString();
    if (name == nullptr) continue;
    if (*name == kLayout && item.AsString() != nullptr) {
      dict.layout = *item.AsString();
      continue;
    }
    if (item.AsTensor() == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("load state dict: ", *name, " is ", item.Describe(),
                       ", wanted a tensor"));
    }
    const auto found = parameters.find(*name);
    dict.entries.push_back(
        {*name,
         AsRows(module, found == parameters.end() ? nullptr : found->second,
                *item.AsTensor())});
  }
  return dict;
}

// The tensors of one parameter's states.
void AddStates(FullyShardedModule& module, const ShardedParameter* p,
               const std::string& parameter, const PickleDict& values,
               OptimizerStateDict& dict) {
  for (const auto& [key, item] : values) {
    const std::string* state = key.AsString();
    const Tensor* tensor = item.AsTensor();
    if (state == nullptr || tensor == nullptr) continue;
    dict.entries.push_back(
        {parameter, *state,
         AsRows(module, *state == "step" ? nullptr : p, *tensor)});
  }
}

absl::StatusOr<OptimizerStateDict> OptimizerDictOf(FullyShardedModule& module,
                                                   const PickleValue& value) {
  OptimizerStateDict dict = {.type = module.state_dict_settings().type,
                             .entries = {},
                             .param_groups = {}};
  const Parameters parameters = ByEachName(module);
  ASSIGN_OR_RETURN(dict.param_groups, GroupsIn(value));
  const PickleValue* states = value.Find("state");
  if (states == nullptr || states->AsDict() == nullptr) {
    return absl::FailedPreconditionError(
        "load optimizer: the file holds no \"state\"");
  }
  for (const auto& [key, values] : *states->AsDict()) {
    const std::string* name = key.AsString();
    if (name == nullptr || values.AsDict() == nullptr) continue;
    const auto found = parameters.find(*name);
    AddStates(module, found == parameters.end() ? nullptr : found->second,
              *name, *values.AsDict(), dict);
  }
  return dict;
}

}  // namespace

std::string ModelFileName(StateDictType type, const StateDictFile& file,
                          int rank) {
  const std::string base = "pytorch_model_fsdp";
  switch (type) {
    case StateDictType::kFullStateDict:
      return absl::StrCat(base, Suffix(file.index), ".bin");
    case StateDictType::kLocalStateDict:
      return absl::StrCat(base, Suffix(file.index), "_rank", rank, ".bin");
    case StateDictType::kShardedStateDict:
      break;
  }
  return file.use_dcp
             ? absl::StrCat(base, "_", file.index)
             : absl::StrCat(base, "_", file.index, "_rank", rank, ".bin");
}

std::string OptimizerFileName(StateDictType type, const StateDictFile& file,
                              int rank) {
  if (type == StateDictType::kFullStateDict) {
    return absl::StrCat("optimizer", Suffix(file.index), ".bin");
  }
  if (type == StateDictType::kShardedStateDict && !file.use_dcp) {
    return absl::StrCat("optimizer_", file.index, "_rank", rank, ".bin");
  }
  return absl::StrCat("optimizer_", file.index);
}

absl::Status SaveFsdpModel(FullyShardedModule& module,
                           const std::string& folder,
                           const StateDictFile& file) {
  Communicator& world = WorldOf(module);
  const StateDictType type = module.state_dict_settings().type;
  RETURN_IF_ERROR(MakeFolder(world, folder));
  ASSIGN_OR_RETURN(const ModelStateDict dict, GetModelStateDict(module));
  const std::string path =
      absl::StrCat(folder, "/", ModelFileName(type, file, world.rank()));
  if (IsFolder(type, file)) return SaveFolder(world, path, dict);
  const bool writes =
      type != StateDictType::kFullStateDict || world.rank() == 0;
  return WriteOn(world, writes, path, AsPickle(dict));
}

absl::Status SaveFsdpOptimizer(FullyShardedModule& module,
                               const Optimizer& optimizer,
                               const std::string& folder,
                               const StateDictFile& file) {
  Communicator& world = WorldOf(module);
  const StateDictType type = module.state_dict_settings().type;
  RETURN_IF_ERROR(MakeFolder(world, folder));
  ASSIGN_OR_RETURN(const OptimizerStateDict dict,
                   GetOptimizerStateDict(module, optimizer));
  const std::string path =
      absl::StrCat(folder, "/", OptimizerFileName(type, file, world.rank()));
  if (IsFolder(type, file) || type == StateDictType::kLocalStateDict) {
    return SaveFolder(world, path, dict);
  }
  const bool writes =
      type != StateDictType::kFullStateDict || world.rank() == 0;
  return WriteOn(world, writes, path, AsPickle(dict));
}

namespace {

absl::Status LoadWhole(FullyShardedModule& module, const std::string& path) {
  Communicator& world = WorldOf(module);
  std::unique_ptr<WeightSource> source;
  absl::Status status;
  if (world.rank() == 0) {
    auto opened = OpenTorchWeights(path);
    status = opened.status();
    if (opened.ok()) source = *std::move(opened);
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state dict"));
  return LoadWeights(module, source.get(), {.match = {}, .rank0_reads = true});
}

absl::Status LoadFolder(FullyShardedModule& module, const std::string& path) {
  Communicator& world = WorldOf(module);
  auto source = OpenDistributedWeights(path);
  RETURN_IF_ERROR(world.AgreeOnStatus(source.status(), "load state dict"));
  return LoadWeights(module, source->get());
}

}  // namespace

absl::Status LoadFsdpModel(FullyShardedModule& module,
                           const std::string& folder,
                           const StateDictFile& file) {
  Communicator& world = WorldOf(module);
  const StateDictType type = module.state_dict_settings().type;
  RETURN_IF_ERROR(
      world.AgreeOnStatus(Try([&] { module.Reshard(); }), "load state dict"));
  const auto path = [&](int rank) {
    return absl::StrCat(folder, "/", ModelFileName(type, file, rank));
  };
  if (IsFolder(type, file)) {
    return LoadFolder(module, Resolve(folder, ModelFileName(type, file, 0)));
  }
  if (type == StateDictType::kFullStateDict) return LoadWhole(module, path(0));
  absl::StatusOr<ModelStateDict> dict = ModelStateDict();
  const absl::Status status = Try([&]() -> absl::Status {
    ASSIGN_OR_RETURN(
        const PickleValue value,
        ReadRankFile(path(world.rank()), path(world.world_size())));
    dict = ModelDictOf(module, type, value);
    return dict.status();
  });
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state dict"));
  return LoadModelStateDict(module, *dict);
}

absl::Status LoadFsdpOptimizer(FullyShardedModule& module, Optimizer& optimizer,
                               const std::string& folder,
                               const StateDictFile& file) {
  Communicator& world = WorldOf(module);
  const StateDictType type = module.state_dict_settings().type;
  const auto path = [&](int rank) {
    return absl::StrCat(folder, "/", OptimizerFileName(type, file, rank));
  };
  if (type == StateDictType::kShardedStateDict && !file.use_dcp) {
    absl::StatusOr<OptimizerStateDict> dict = OptimizerStateDict();
    const absl::Status status = Try([&]() -> absl::Status {
      ASSIGN_OR_RETURN(
          const PickleValue value,
          ReadRankFile(path(world.rank()), path(world.world_size())));
      dict = OptimizerDictOf(module, value);
      return dict.status();
    });
    RETURN_IF_ERROR(world.AgreeOnStatus(status, "load optimizer"));
    return LoadOptimizerStateDict(module, optimizer, *dict);
  }
  auto source = type == StateDictType::kFullStateDict
                    ? OpenOptimizerFile(path(0))
                    : OpenOptimizerFolder(
                          Resolve(folder, OptimizerFileName(type, file, 0)));
  RETURN_IF_ERROR(world.AgreeOnStatus(source.status(), "load optimizer"));
  return LoadOptimizerStates(module, optimizer, **source);
}

}  // namespace tessera
