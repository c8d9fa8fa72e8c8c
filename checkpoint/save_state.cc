#include "checkpoint/save_state.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/state_dict_io.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_writer.h"
#include "checkpoint/whole_number.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kGenerator[] = "philox";

PickleList ListOf(const std::vector<double>& numbers) {
  PickleList list;
  for (const double number : numbers) list.items.emplace_back(number);
  return list;
}

absl::Status Wrong(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("load state: ", what));
}

absl::StatusOr<std::vector<double>> NumbersIn(const PickleValue& dict,
                                              const char* key) {
  std::vector<double> numbers;
  const PickleValue* list = dict.Find(key);
  if (list == nullptr || list->AsItems() == nullptr) {
    return Wrong(absl::StrCat(key, " is no list"));
  }
  for (const PickleValue& item : *list->AsItems()) {
    const auto number = item.AsNumber();
    if (!number.has_value()) return Wrong(absl::StrCat(key, ": no number"));
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<double> NumberIn(const PickleValue& dict, const char* key) {
  const PickleValue* value = dict.Find(key);
  const auto number = value == nullptr ? std::nullopt : value->AsNumber();
  if (!number.has_value()) return Wrong(absl::StrCat(key, " is no number"));
  return *number;
}

std::string SchedulerPath(const std::string& folder, size_t i) {
  return absl::StrCat(folder, i == 0 ? "/scheduler" : "/scheduler_",
                      i == 0 ? "" : absl::StrCat(i), ".bin");
}

std::string ScalerPath(const std::string& folder) {
  return absl::StrCat(folder, "/scaler.pt");
}

std::string RandomPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/random_states_", rank, ".pkl");
}

PickleDict RandomDict(const RandomState& state) {
  PickleDict counters;
  for (const auto& [name, counter] : state.counters) {
    counters.emplace_back(name, counter);
  }
  PickleDict dict;
  dict.emplace_back("generator", kGenerator);
  dict.emplace_back("step", state.step);
  dict.emplace_back("seed", state.seed);
  dict.emplace_back("counters", std::move(counters));
  return dict;
}

// Nothing for a file that is not ours.
std::optional<RandomState> RandomOf(const PickleValue& dict) {
  const PickleValue* generator = dict.Find("generator");
  if (generator == nullptr || generator->AsString() == nullptr ||
      *generator->AsString() != kGenerator) {
    return std::nullopt;
  }
  const auto number = [&](const char* key) {
    const PickleValue* value = dict.Find(key);
    return value == nullptr ? int64_t{0} : value->AsInt().value_or(0);
  };
  RandomState state = {
      .step = number("step"), .seed = number("seed"), .counters = {}};
  const PickleValue* counters = dict.Find("counters");
  if (counters == nullptr || counters->AsDict() == nullptr) return state;
  for (const auto& [name, counter] : *counters->AsDict()) {
    if (name.AsString() == nullptr || !counter.AsInt().has_value()) continue;
    state.counters[*name.AsString()] = *counter.AsInt();
  }
  return state;
}

absl::StatusOr<PickleValue> ReadValueOf(const std::string& path) {
  ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(path));
  return file.ReadValue();
}

// Whether there was such a file. That it is gone lasts.
absl::StatusOr<bool> RemoveIfThere(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  fs::remove(path, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("remove ", path));
  }
  RETURN_IF_ERROR(SyncFolder(fs::path(path).parent_path().string()));
  return true;
}

absl::Status CheckObjects(const RunObjects& objects) {
  if (objects.optimizers.size() > objects.models.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state: optimizer i is that of model i, got ",
                     objects.optimizers.size(), " optimizers and ",
                     objects.models.size(), " models"));
  }
  return absl::OkStatus();
}

// What rank 0 writes for all: small things.
absl::Status WriteShared(const std::string& folder, const RunObjects& objects) {
  for (size_t i = 0; i < objects.schedulers.size(); ++i) {
    RETURN_IF_ERROR(WriteTorchFile(SchedulerPath(folder, i),
                                   SchedulerDict(*objects.schedulers[i])));
  }
  if (objects.scaler == nullptr) return absl::OkStatus();
  return WriteTorchFile(ScalerPath(folder), ScalerDict(*objects.scaler));
}

// What all ranks read for themselves, before anything is changed.
struct SharedState {
  std::vector<SchedulerState> schedulers;
  GradScalerState scaler = {};
};

absl::StatusOr<SharedState> ReadShared(const std::string& folder,
                                       const RunObjects& objects) {
  SharedState shared;
  for (size_t i = 0; i < objects.schedulers.size(); ++i) {
    const std::string path = SchedulerPath(folder, i);
    ASSIGN_OR_RETURN(const PickleValue dict, ReadValueOf(path));
    absl::StatusOr<SchedulerState> state = SchedulerOf(dict);
    if (!state.ok()) return Annotate(state.status(), path);
    shared.schedulers.push_back(*std::move(state));
  }
  if (objects.scaler == nullptr) return shared;
  ASSIGN_OR_RETURN(const PickleValue dict, ReadValueOf(ScalerPath(folder)));
  absl::StatusOr<GradScalerState> state = ScalerOf(dict);
  if (!state.ok()) return Annotate(state.status(), ScalerPath(folder));
  shared.scaler = *std::move(state);
  return shared;
}

void Assign(SharedState shared, const RunObjects& objects) {
  for (size_t i = 0; i < shared.schedulers.size(); ++i) {
    *objects.schedulers[i] = std::move(shared.schedulers[i]);
  }
  if (objects.scaler != nullptr) objects.scaler->set_state(shared.scaler);
}

// [Note: a state is one run's]
// Files are replaced one by one, so a save that ends early would leave some of
// the run before beside some of this one. What is about to be replaced
// therefore goes first, and what a state can do without (random numbers) is
// written first: a folder that lacks anything is no state.
absl::Status RemoveOldState(const std::string& folder,
                            const RunObjects& objects,
                            const SaveStateOptions& options, int world_size) {
  std::vector<std::string> old;
  for (size_t i = 0; i < objects.schedulers.size(); ++i) {
    old.push_back(SchedulerPath(folder, i));
  }
  if (objects.scaler != nullptr) old.push_back(ScalerPath(folder));
  for (size_t i = 0; i < objects.models.size(); ++i) {
    const StateDictType type = objects.models[i]->state_dict_settings().type;
    const StateDictFile file = {static_cast<int>(i), options.use_dcp};
    for (int r = 0; r < world_size; ++r) {
      for (const std::string& name :
           {OptimizerFileName(type, file, r), ModelFileName(type, file, r)}) {
        old.push_back(absl::StrCat(folder, "/", name));
      }
    }
  }
  for (int r = 0; r < world_size && objects.random != nullptr; ++r) {
    old.push_back(RandomPath(folder, r));
  }
  bool overwrites = false;
  for (const std::string& path : old) {
    ASSIGN_OR_RETURN(const bool file, RemoveIfThere(path));
    ASSIGN_OR_RETURN(
        const bool metadata,
        RemoveIfThere(absl::StrCat(path, "/", kDistributedMetadataName)));
    overwrites = overwrites || file || metadata;
  }
  if (overwrites) spdlog::warn("save state: {} is overwritten", folder);
  return absl::OkStatus();
}

absl::Status ReadRandom(Communicator& world, const std::string& folder,
                        RandomState& random) {
  const auto value = ReadValueOf(RandomPath(folder, world.rank()));
  std::optional<RandomState> state;
  if (value.ok()) state = RandomOf(*value);
  ASSIGN_OR_RETURN(
      const std::vector<std::string> ours,
      world.AllGatherBytes(state.has_value() ? "ours" : "", "random states"));
  for (int r = 0; r < world.world_size() && world.rank() == 0; ++r) {
    if (!ours[r].empty()) continue;
    spdlog::warn(
        "load state: {} holds no random state of this program; it is skipped, "
        "and so are others like it",
        RandomPath(folder, r));
    break;
  }
  if (state.has_value()) random = *std::move(state);
  return absl::OkStatus();
}

}  // namespace

PickleDict SchedulerDict(const SchedulerState& state) {
  PickleList lambdas;
  lambdas.items.resize(state.base_lrs.size());
  PickleDict dict;
  dict.emplace_back("base_lrs", ListOf(state.base_lrs));
  dict.emplace_back("last_epoch", state.last_epoch);
  dict.emplace_back("_step_count", state.last_epoch + 1);
  dict.emplace_back("_is_initial", false);
  dict.emplace_back("_get_lr_called_within_step", false);
  dict.emplace_back("_last_lr", ListOf(state.last_lrs));
  dict.emplace_back("lr_lambdas", std::move(lambdas));
  return dict;
}

absl::StatusOr<SchedulerState> SchedulerOf(const PickleValue& dict) {
  SchedulerState state;
  ASSIGN_OR_RETURN(state.base_lrs, NumbersIn(dict, "base_lrs"));
  ASSIGN_OR_RETURN(state.last_lrs, NumbersIn(dict, "_last_lr"));
  ASSIGN_OR_RETURN(const double epoch, NumberIn(dict, "last_epoch"));
  // Before its first step a scheduler is at -1.
  ASSIGN_OR_RETURN(state.last_epoch,
                   WholeNumber(epoch, "load state: last_epoch", -1));
  return state;
}

PickleDict ScalerDict(const GradScaler& scaler) {
  PickleDict dict;
  dict.emplace_back("scale", scaler.state().scale);
  dict.emplace_back("growth_factor", scaler.options().growth_factor);
  dict.emplace_back("backoff_factor", scaler.options().backoff_factor);
  dict.emplace_back("growth_interval", scaler.options().growth_interval);
  dict.emplace_back("_growth_tracker", scaler.state().good_steps);
  return dict;
}

absl::StatusOr<GradScalerState> ScalerOf(const PickleValue& dict) {
  GradScalerState state = {};
  ASSIGN_OR_RETURN(state.scale, NumberIn(dict, "scale"));
  ASSIGN_OR_RETURN(const double steps, NumberIn(dict, "_growth_tracker"));
  ASSIGN_OR_RETURN(state.good_steps,
                   WholeNumber(steps, "load state: _growth_tracker"));
  if (state.scale > 0 && std::isfinite(state.scale)) return state;
  return Wrong(
      absl::StrCat("the scale is ", state.scale, ", wanted a number above 0"));
}

absl::Status SaveState(Accelerator& accelerator, const std::string& folder,
                       const RunObjects& objects,
                       const SaveStateOptions& options) {
  Communicator& world = *accelerator.world();
  absl::Status status = CheckObjects(objects);
  if (status.ok()) status = MakeFolders(folder);
  if (status.ok() && world.rank() == 0) {
    status = Try([&] {
      return RemoveOldState(folder, objects, options, world.world_size());
    });
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "save state"));
  if (objects.random != nullptr) {
    status = WriteTorchFile(RandomPath(folder, world.rank()),
                            RandomDict(*objects.random));
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "save random state"));
  for (size_t i = 0; i < objects.models.size(); ++i) {
    const StateDictFile file = {static_cast<int>(i), options.use_dcp};
    RETURN_IF_ERROR(SaveFsdpModel(*objects.models[i], folder, file));
    if (i >= objects.optimizers.size()) continue;
    RETURN_IF_ERROR(SaveFsdpOptimizer(*objects.models[i],
                                      *objects.optimizers[i], folder, file));
  }
  if (world.rank() == 0) status = WriteShared(folder, objects);
  return world.AgreeOnStatus(status, "save state");
}

absl::Status LoadState(Accelerator& accelerator, const std::string& folder,
                       const RunObjects& objects,
                       const SaveStateOptions& options) {
  Communicator& world = *accelerator.world();
  absl::Status status = CheckObjects(objects);
  SharedState shared;
  if (status.ok()) {
    status = Try([&]() -> absl::Status {
      ASSIGN_OR_RETURN(shared, ReadShared(folder, objects));
      return absl::OkStatus();
    });
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "load state"));
  for (size_t i = 0; i < objects.models.size(); ++i) {
    const StateDictFile file = {static_cast<int>(i), options.use_dcp};
    RETURN_IF_ERROR(LoadFsdpModel(*objects.models[i], folder, file));
    if (i >= objects.optimizers.size()) continue;
    RETURN_IF_ERROR(LoadFsdpOptimizer(*objects.models[i],
                                      *objects.optimizers[i], folder, file));
  }
  Assign(std::move(shared), objects);
  if (objects.random == nullptr) return absl::OkStatus();
  return ReadRandom(world, folder, *objects.random);
}

}  // namespace tessera
