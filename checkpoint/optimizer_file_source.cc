#include "checkpoint/optimizer_file_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_file.h"
#include "fsdp/local_part.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr char kStep[] = "step";
constexpr char kState[] = "state";
constexpr char kGroups[] = "param_groups";

bool IsRowMajor(const ShardedParameter& p) {
  return std::is_sorted(p.order.begin(), p.order.end());
}

absl::StatusOr<double> NumberOf(const PickleValue* value,
                                const std::string& parameter) {
  const auto number = value == nullptr ? std::nullopt : value->AsNumber();
  if (number.has_value()) return *number;
  return absl::FailedPreconditionError(
      absl::StrCat("load optimizer: the step of ", parameter, " is no number"));
}

class FileSource : public OptimizerStateSource {
 public:
  explicit FileSource(TorchFile file) : file_(std::move(file)) {}

  absl::Status List() {
    const std::string prefix = absl::StrCat(kState, "/");
    for (const TorchEntry& entry : file_.entries()) {
      const size_t last = entry.name.rfind('/');
      if (entry.name.rfind(prefix, 0) != 0 || last < prefix.size()) continue;
      listing_[entry.name.substr(prefix.size(), last - prefix.size())]
              [entry.name.substr(last + 1)] = entry.tensor.shape;
    }
    const bool all_steps = std::all_of(
        listing_.begin(), listing_.end(),
        [](const auto& states) { return states.second.contains(kStep); });
    if (all_steps && !listing_.empty()) return absl::OkStatus();
    // Of an older torch, or without moments: what is no tensor counts too.
    ASSIGN_OR_RETURN(const PickleValue tree, file_.ReadValue());
    const PickleValue* states = tree.Find(kState);
    if (states == nullptr || states->AsDict() == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(file_.where(), ": holds no \"state\" of an optimizer"));
    }
    for (const auto& [name, values] : *states->AsDict()) {
      const PickleValue* step = values.Find(kStep);
      if (name.AsString() == nullptr || step == nullptr) continue;
      if (step->AsTensor() != nullptr) continue;
      ASSIGN_OR_RETURN(steps_[*name.AsString()],
                       NumberOf(step, *name.AsString()));
      listing_[*name.AsString()][kStep] = Shape{};
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> ReadStep(const std::string& parameter) override {
    if (steps_.contains(parameter)) return steps_[parameter];
    ASSIGN_OR_RETURN(const Tensor step,
                     file_.Read(Name(parameter, kStep), CurrentDevice()));
    return step.num_elements() == 1 ? step.Item()
                                    : NumberOf(nullptr, parameter);
  }

  absl::StatusOr<Tensor> ReadPart(const ShardedParameter& p,
                                  const std::string& state) override {
    const std::string name = Name(p.name, state);
    const Device device = p.variable.device();
    if (IsRowMajor(p)) {
      return file_.ReadElements(name, p.begin, p.length, device);
    }
    ASSIGN_OR_RETURN(const Tensor whole, file_.Read(name, device));
    return LocalPart(p, whole);
  }

  absl::StatusOr<std::vector<PickleDict>> ReadGroups() override {
    ASSIGN_OR_RETURN(const PickleValue tree, file_.ReadValue());
    return GroupsIn(tree);
  }

 private:
  static std::string Name(const std::string& parameter,
                          const std::string& state) {
    return absl::StrCat(kState, "/", parameter, "/", state);
  }

  TorchFile file_;
  std::map<std::string, double> steps_;
};

class FolderSource : public OptimizerStateSource {
 public:
  explicit FolderSource(DistributedCheckpoint checkpoint)
      : checkpoint_(std::move(checkpoint)) {
    for (const auto& [key, tensor] : checkpoint_.metadata().tensors) {
      AddState(key, tensor.shape);
    }
    for (const auto& [key, item] : checkpoint_.metadata().values) {
      AddState(key, Shape{});
    }
  }

  absl::StatusOr<double> ReadStep(const std::string& parameter) override {
    const std::string key = keys_.at({parameter, kStep});
    if (checkpoint_.metadata().values.contains(key)) {
      ASSIGN_OR_RETURN(const PickleValue value, checkpoint_.ReadValue(key));
      return NumberOf(&value, parameter);
    }
    ASSIGN_OR_RETURN(const Tensor step, checkpoint_.Read(key, CurrentDevice()));
    return step.num_elements() == 1 ? step.Item()
                                    : NumberOf(nullptr, parameter);
  }

  absl::StatusOr<Tensor> ReadPart(const ShardedParameter& p,
                                  const std::string& state) override {
    const std::string key = keys_.at({p.name, state});
    const Device device = p.variable.device();
    if (IsRowMajor(p)) {
      return checkpoint_.ReadElements(key, p.begin, p.length, device);
    }
    ASSIGN_OR_RETURN(const Tensor whole, checkpoint_.Read(key, device));
    return LocalPart(p, whole);
  }

  // [Note: groups of older versions] The items are single fields; of torch 2.3
  // and older, whole groups; or the list of them. What an item is says its
  // path.
  absl::StatusOr<std::vector<PickleDict>> ReadGroups() override {
    std::vector<PickleDict> groups;
    for (const auto& [key, item] : checkpoint_.metadata().values) {
      const DistributedPath path = checkpoint_.PathOf(key);
      if (path.size() < 2 || path.size() > 4 || path[1] != Step(kGroups)) {
        continue;
      }
      ASSIGN_OR_RETURN(PickleValue value, checkpoint_.ReadValue(key));
      if (path.size() == 2) {
        PickleDict whole;
        whole.emplace_back(kGroups, std::move(value));
        return GroupsIn(PickleValue(std::move(whole)));
      }
      const auto* index = std::get_if<int64_t>(&path[2]);
      if (index == nullptr || *index < 0 || *index >= kMostGroups) continue;
      if (*index >= static_cast<int64_t>(groups.size())) {
        groups.resize(*index + 1);
      }
      RETURN_IF_ERROR(AddFields(path, std::move(value), groups[*index]));
    }
    return groups;
  }

 private:
  static constexpr int64_t kMostGroups = 100000;
  using Step = DistributedPath::value_type;

  // One field, or all.
  static absl::Status AddFields(const DistributedPath& path, PickleValue value,
                                PickleDict& group) {
    if (path.size() == 4) {
      const auto* field = std::get_if<std::string>(&path[3]);
      if (field != nullptr) group.emplace_back(*field, std::move(value));
      return absl::OkStatus();
    }
    if (value.AsDict() == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("load optimizer: ", DistributedKey(path), " is ",
                       value.Describe(), ", wanted a dictionary"));
    }
    for (auto& field : *value.AsDict()) group.push_back(std::move(field));
    return absl::OkStatus();
  }

  void AddState(const std::string& key, const Shape& shape) {
    const DistributedPath path = checkpoint_.PathOf(key);
    if (path.size() != 4 || path[1] != Step(kState)) return;
    const auto* name = std::get_if<std::string>(&path[2]);
    const auto* state = std::get_if<std::string>(&path[3]);
    if (name == nullptr || state == nullptr) return;
    listing_[*name][*state] = shape;
    keys_[{*name, *state}] = key;
  }

  DistributedCheckpoint checkpoint_;
  std::map<std::pair<std::string, std::string>, std::string> keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OptimizerStateSource>> OpenOptimizerFile(
    const std::string& path) {
  ASSIGN_OR_RETURN(TorchFile file, TorchFile::Open(path));
  auto source = std::make_unique<FileSource>(std::move(file));
  RETURN_IF_ERROR(source->List());
  return source;
}

absl::StatusOr<std::unique_ptr<OptimizerStateSource>> OpenOptimizerFolder(
    const std::string& folder) {
  ASSIGN_OR_RETURN(DistributedCheckpoint checkpoint,
                   DistributedCheckpoint::Open(folder));
  return std::make_unique<FolderSource>(std::move(checkpoint));
}

absl::StatusOr<std::vector<PickleDict>> GroupsIn(const PickleValue& dict) {
  const PickleValue* list = dict.Find(kGroups);
  std::vector<PickleDict> groups;
  bool ok = list != nullptr && list->AsItems() != nullptr;
  if (ok) {
    for (const PickleValue& group : *list->AsItems()) {
      ok = ok && group.AsDict() != nullptr;
      if (ok) groups.push_back(*group.AsDict());
    }
  }
  if (ok) return groups;
  return absl::FailedPreconditionError(
      "load optimizer: param_groups is no list of dictionaries");
}

}  // namespace tessera
