#include "fsdp/load_full_state_dict.h"

#include <spdlog/spdlog.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/json_of_rank0.h"
#include "fsdp/name_differences.h"
#include "fsdp/parameter_names.h"
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
  const ParameterNames names(model.module());
  std::vector<Target> targets;
  for (const ShardedParameter& p : model.Parameters()) {
    targets.push_back({names.Of(p.variable), p.variable, p.global_shape});
  }
  for (const NamedBuffer& b : model.module().NamedBuffers()) {
    if (!b.persistent) continue;
    targets.push_back({{b.name}, b.variable, b.variable.shape(), true});
  }
  return targets;
}

// What a dictionary holds, for ranks without one.
struct Listed {
  bool floating = false;
  Shape shape;
};
using Listing = std::map<std::string, Listed>;

Listing ListingOf(const FullStateDict& dict) {
  Listing listing;
  for (const auto& [name, tensor] : dict) {
    listing[name] = {IsFloating(tensor.dtype()), tensor.shape()};
  }
  return listing;
}

nlohmann::json ToJson(const Listing& listing) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [name, listed] : listing) {
    const Dims& sizes = listed.shape.sizes();
    json.push_back({name, listed.floating,
                    std::vector<int64_t>(sizes.begin(), sizes.end())});
  }
  return json;
}

Listing FromJson(const nlohmann::json& json) {
  Listing listing;
  for (const nlohmann::json& item : json) {
    Listed& listed = listing[item.at(0).get<std::string>()];
    listed.floating = item.at(1).get<bool>();
    listed.shape = Shape(item.at(2).get<std::vector<int64_t>>());
  }
  return listing;
}

void Compare(const std::string& name, const Listed& has, const Target& target,
             NameDifferences& differences) {
  const DType dtype = target.variable.dtype();
  if (has.shape == target.shape && has.floating == IsFloating(dtype)) return;
  differences.mismatched.push_back(
      absl::StrCat(name, " is ", has.floating ? "floating " : "integer ",
                   has.shape.ToString(), ", wanted ", DTypeName(dtype), " ",
                   target.shape.ToString()));
}

// The names under which each target is in the dictionary, at least one; one
// error of all that does not fit.
absl::StatusOr<std::vector<std::vector<std::string>>> Match(
    const std::vector<Target>& targets, const Listing& listing) {
  std::vector<std::vector<std::string>> found;
  NameDifferences differences;
  for (const auto& [name, unused] : listing) {
    differences.unexpected.insert(name);
  }
  for (const Target& target : targets) {
    std::vector<std::string>& names = found.emplace_back();
    for (const std::string& name : target.names) {
      differences.unexpected.erase(name);
      const auto listed = listing.find(name);
      if (listed == listing.end()) continue;
      names.push_back(name);
      Compare(name, listed->second, target, differences);
    }
    if (names.empty()) differences.missing.push_back(target.names[0]);
  }
  RETURN_IF_ERROR(
      differences.AsStatus("load full state dict: it is not the model's"));
  return found;
}

// Once both have the type of what takes them.
bool HaveSameValues(const Tensor& a, const Tensor& b, DType dtype) {
  if (a.storage() == b.storage() && a.dtype() == b.dtype() &&
      a.storage_offset() == b.storage_offset()) {
    return true;
  }
  return VisitDType(dtype, [&]<typename T>() {
    const std::vector<T> x = ops::Cast(a, dtype).ToVector<T>();
    const std::vector<T> y = ops::Cast(b, dtype).ToVector<T>();
    if constexpr (std::is_same_v<T, bool>) {
      return x == y;
    } else {  // NaN is NaN.
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
    }
  });
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
    // Of this rank; it must not end the broadcasts.
    absl::Status status = Try([&] { WarnOfUntied(); });
    for (size_t i = 0; i < targets_.size(); ++i) {
      RETURN_IF_ERROR(Load(targets_[i], names_[i][0], status));
    }
    return world_.AgreeOnStatus(status, "load full state dict");
  }

 private:
  bool has_values() const { return !from_rank0_ || world_.rank() == 0; }

  absl::Status Check() {
    RETURN_IF_ERROR(world_.AgreeOnStatus(Try([&] { model_.Reshard(); }),
                                         "load full state dict"));
    Listing listing;
    if (from_rank0_) {
      ASSIGN_OR_RETURN(const nlohmann::json shared,
                       JsonOfRank0(
                           world_, [&] { return ToJson(ListingOf(dict_)); },
                           "names of a state dict"));
      listing = FromJson(shared);
    } else {
      listing = ListingOf(dict_);
    }
    auto names = Match(targets_, listing);
    RETURN_IF_ERROR(
        world_.AgreeOnStatus(names.status(), "load full state dict"));
    names_ = *std::move(names);
    return absl::OkStatus();
  }

  // A parameter that is tied here may stand twice in a dictionary.
  void WarnOfUntied() const {
    if (world_.rank() != 0) return;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const std::string& used = names_[i][0];
      for (size_t n = 1; n < names_[i].size(); ++n) {
        const std::string& other = names_[i][n];
        if (HaveSameValues(dict_.at(used), dict_.at(other),
                           targets_[i].variable.dtype())) {
          continue;
        }
        spdlog::warn(
            "load full state dict: {} and {} are tied in the model but differ "
            "in the dictionary; {} is used",
            used, other, used);
      }
    }
  }

  absl::Status Load(const Target& target, const std::string& name,
                    absl::Status& status) {
    const Tensor data = target.variable.data();
    Tensor whole;
    RETURN_IF_ERROR(world_.AgreeOnStatus(
        Try([&] {
          whole = Tensor::Empty(target.shape, {data.dtype(), data.device()});
          if (has_values()) Fill(dict_.at(name), whole);
          // What was queued before may fail.
          ComputeStream(data.device()).Synchronize();
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
    return absl::OkStatus();
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
  // Of each target, in the dictionary.
  std::vector<std::vector<std::string>> names_;
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
