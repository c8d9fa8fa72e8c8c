#include "fsdp/load_full_state_dict.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/name_differences.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// A parameter or buffer that wants a value.
struct Target {
  std::vector<std::string> names;  // Several of a tied parameter.
  Variable variable;
  Shape shape;  // Of the whole.
  bool is_buffer = false;
};

std::vector<Target> TargetsOf(FullyShardedModule& model) {
  std::map<const VariableImpl*, std::vector<std::string>> names;
  for (const NamedVariable& p : model.module().NamedParameters(true)) {
    names[p.variable.impl().get()].push_back(p.name);
  }
  std::vector<Target> targets;
  for (const ShardedParameter& p : model.Parameters()) {
    targets.push_back(
        {names.at(p.variable.impl().get()), p.variable, p.global_shape});
  }
  for (const NamedBuffer& b : model.module().NamedBuffers()) {
    if (!b.persistent) continue;
    targets.push_back({{b.name}, b.variable, b.variable.shape(), true});
  }
  return targets;
}

// "NAME|TYPE|SHAPE" a line: what a dictionary holds, for ranks without one.
std::string Listing(const FullStateDict& dict) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : dict) {
    lines.push_back(absl::StrCat(name, "|", IsFloating(tensor.dtype()), "|",
                                 tensor.shape().ToString()));
  }
  return absl::StrJoin(lines, "\n");
}

struct Listed {
  bool floating = false;
  std::string shape;
};

std::map<std::string, Listed> ParseListing(const std::string& text) {
  std::map<std::string, Listed> listed;
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const size_t shape = line.rfind('|');
    const size_t floating = line.rfind('|', shape - 1);
    listed[line.substr(0, floating)] = {line[floating + 1] == '1',
                                        line.substr(shape + 1)};
  }
  return listed;
}

// The name under which each target is in the dictionary; one error of all that
// does not fit.
absl::StatusOr<std::vector<std::string>> Match(
    const std::vector<Target>& targets,
    const std::map<std::string, Listed>& listed) {
  std::vector<std::string> found;
  NameDifferences differences;
  for (const auto& [name, unused] : listed) differences.unexpected.insert(name);
  for (const Target& target : targets) {
    const auto name =
        std::find_if(target.names.begin(), target.names.end(),
                     [&](const std::string& n) { return listed.contains(n); });
    for (const std::string& n : target.names) differences.unexpected.erase(n);
    if (name == target.names.end()) {
      differences.missing.push_back(target.names[0]);
      continue;
    }
    found.push_back(*name);
    const Listed& has = listed.at(*name);
    if (has.shape == target.shape.ToString() &&
        has.floating == IsFloating(target.variable.dtype())) {
      continue;
    }
    differences.mismatched.push_back(
        absl::StrCat(*name, " is ", has.floating ? "floating " : "integer ",
                     has.shape, ", wanted ", DTypeName(target.variable.dtype()),
                     " ", target.shape.ToString()));
  }
  RETURN_IF_ERROR(
      differences.AsStatus("load full state dict: it is not the model's"));
  return found;
}

// Sends or takes the tensors one by one.
class Loader {
 public:
  Loader(FullyShardedModule& model, const FullStateDict& dict,
         const FullStateDictOptions& options)
      : model_(model),
        world_(*model.mesh().world()),
        dict_(dict),
        from_rank0_(options.from_rank0),
        targets_(TargetsOf(model)) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Check());
    absl::Status status;  // Of this rank; it must not end the broadcasts.
    for (size_t i = 0; i < targets_.size(); ++i) {
      RETURN_IF_ERROR(Load(targets_[i], names_[i], status));
    }
    return world_.AgreeOnStatus(status, "load full state dict");
  }

 private:
  bool has_values() const { return !from_rank0_ || world_.rank() == 0; }

  absl::Status Check() {
    RETURN_IF_ERROR(world_.AgreeOnStatus(Try([&] { model_.Reshard(); }),
                                         "load full state dict"));
    const std::string mine = has_values() ? Listing(dict_) : "";
    std::string listing = mine;
    if (from_rank0_) {
      ASSIGN_OR_RETURN(const std::vector<std::string> all,
                       world_.AllGatherBytes(mine, "names of a state dict"));
      listing = all[0];
    }
    absl::StatusOr<std::vector<std::string>> names =
        Match(targets_, ParseListing(listing));
    RETURN_IF_ERROR(
        world_.AgreeOnStatus(names.status(), "load full state dict"));
    names_ = *std::move(names);
    return absl::OkStatus();
  }

  absl::Status Load(const Target& target, const std::string& name,
                    absl::Status& status) {
    const Tensor data = target.variable.data();
    Tensor whole;
    RETURN_IF_ERROR(world_.AgreeOnStatus(
        Try([&] {
          whole = Tensor::Empty(target.shape, {data.dtype(), data.device()});
          if (has_values()) Fill(dict_.at(name), whole);
        }),
        name));
    if (from_rank0_ && world_.world_size() > 1 && whole.num_elements() > 0) {
      // Some types are not known to collectives; bytes are.
      const Tensor bytes[] = {
          Tensor::View(whole.storage(), 0, {whole.num_bytes()}, DType::kUInt8)};
      Stream& stream = ComputeStream(data.device());
      RETURN_IF_ERROR(world_.Broadcast(bytes, 0, stream, name));
    }
    absl::Status set;
    if (target.is_buffer) {
      set = Try([&] { ops::Copy(whole, data); });
    } else {
      set = model_.SetFullParameter(target.names[0], whole);
    }
    if (status.ok()) status = set;
    return Try([&] { ComputeStream(data.device()).Synchronize(); });
  }

  // In the model's type, on its device.
  static void Fill(const Tensor& value, const Tensor& whole) {
    if (value.device() == whole.device()) {
      ops::Copy(value, whole);
      return;
    }
    VisitDType(value.dtype(), [&]<typename T>() {
      ops::Copy(Tensor::FromVector(value.ToVector<T>(), value.shape(),
                                   whole.device()),
                whole);
    });
  }

  FullyShardedModule& model_;
  Communicator& world_;
  const FullStateDict& dict_;
  const bool from_rank0_;
  const std::vector<Target> targets_;
  std::vector<std::string> names_;  // Of each target, in the dictionary.
};

}  // namespace

absl::Status LoadFullStateDict(FullyShardedModule& model,
                               const FullStateDict& full_state_dict,
                               const FullStateDictOptions& options) {
  return Loader(model, full_state_dict, options).Run();
}

absl::Status Fsdp2LoadFullStateDict(Accelerator& accelerator,
                                    FullyShardedModule& model,
                                    const FullStateDict& full_state_dict,
                                    bool cpu_offload) {
  absl::Status status;
  for (const ShardedParameter& p : model.Parameters()) {
    if (!cpu_offload || p.variable.device().type == DeviceType::kCpu) {
      continue;
    }
    status = absl::UnimplementedError(
        absl::StrCat("load full state dict: shards are offloaded to the host "
                     "where they are kept there, but ",
                     p.name, " is on ", p.variable.device().ToString()));
  }
  RETURN_IF_ERROR(
      accelerator.world()->AgreeOnStatus(status, "load full state dict"));
  return LoadFullStateDict(model, full_state_dict);
}

}  // namespace tessera
