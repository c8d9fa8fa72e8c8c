// States of an optimizer from a dictionary in memory.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/optimizer_state_dict.h"
#include "fsdp/comm/json_of_rank0.h"
#include "fsdp/local_part.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

class DictSource : public OptimizerStateSource {
 public:
  DictSource(FullyShardedModule& module, const OptimizerStateDict& dict)
      : module_(module), dict_(dict) {
    for (const OptimizerStateDict::Entry& e : dict.entries) {
      entries_[{e.parameter, e.state}] = &e.rows;
      listing_[e.parameter][e.state] = e.rows.global_shape;
    }
  }

  absl::StatusOr<double> ReadStep(const std::string& parameter) override {
    ASSIGN_OR_RETURN(const TensorRows* rows, Find(parameter, "step"));
    if (rows->tensor.num_elements() != 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          "load optimizer: the step of ", parameter, " is no number"));
    }
    return rows->tensor.Item();
  }

  absl::StatusOr<std::vector<PickleDict>> ReadGroups() override {
    return dict_.param_groups;
  }

  absl::StatusOr<Tensor> ReadPart(const ShardedParameter& p,
                                  const std::string& state) override {
    ASSIGN_OR_RETURN(const TensorRows* rows, Find(p.name, state));
    if (dict_.type == StateDictType::kFullStateDict) {
      return LocalPart(p, rows->tensor);
    }
    return PartOfRows(module_, p, rows->tensor);
  }

 protected:
  absl::StatusOr<const TensorRows*> Find(const std::string& parameter,
                                         const std::string& state) const {
    const auto found = entries_.find({parameter, state});
    if (found != entries_.end()) return found->second;
    return absl::NotFoundError(
        absl::StrCat("load optimizer: no ", state, " of ", parameter));
  }

  FullyShardedModule& module_;
  const OptimizerStateDict& dict_;
  std::map<std::pair<std::string, std::string>, const TensorRows*> entries_;
};

// A full dictionary that rank 0 alone has: tensors travel one by one.
class Rank0Source : public DictSource {
 public:
  Rank0Source(FullyShardedModule& module, const OptimizerStateDict& dict)
      : DictSource(module, dict), world_(*module.mesh().world()) {}

  // Tells the others what there is. Collective.
  absl::Status Share() {
    ASSIGN_OR_RETURN(const nlohmann::json shared,
                     JsonOfRank0(
                         world_, [&] { return List(); }, "saved states"));
    listing_.clear();
    for (const nlohmann::json& item : shared) {
      const auto name = item.at(0).get<std::string>();
      const auto state = item.at(1).get<std::string>();
      listing_[name][state] = Shape(item.at(2).get<std::vector<int64_t>>());
      if (state == "step") steps_[name] = item.at(3).get<double>();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> ReadStep(const std::string& parameter) override {
    const auto found = steps_.find(parameter);
    if (found != steps_.end()) return found->second;
    return DictSource::ReadStep(parameter);
  }

  absl::StatusOr<Tensor> ReadPart(const ShardedParameter& p,
                                  const std::string& state) override {
    const Device device = p.variable.device();
    Tensor whole;
    absl::Status status = Try([&] {
      whole = Tensor::Empty(p.global_shape, {DType::kFloat32, device});
      if (p.variable.dtype() == DType::kFloat64) {
        whole = Tensor::Empty(p.global_shape, {DType::kFloat64, device});
      }
      if (world_.rank() != 0) return;
      const TensorRows& rows = *OrThrow(Find(p.name, state));
      ops::Copy(rows.tensor, whole);
    });
    RETURN_IF_ERROR(world_.AgreeOnStatus(status, "load optimizer"));
    if (whole.num_elements() > 0) {
      const Tensor parts[] = {whole.Flatten()};
      RETURN_IF_ERROR(
          world_.Broadcast(parts, 0, ComputeStream(device), p.name));
    }
    return LocalPart(p, whole);
  }

 private:
  // Of rank 0: parameter, state, shape and, of a step, the number.
  absl::StatusOr<nlohmann::json> List() {
    nlohmann::json list = nlohmann::json::array();
    for (const OptimizerStateDict::Entry& e : dict_.entries) {
      double step = 0;
      if (e.state == "step") {
        ASSIGN_OR_RETURN(step, DictSource::ReadStep(e.parameter));
      }
      const Dims& sizes = e.rows.global_shape.sizes();
      list.push_back({e.parameter, e.state,
                      std::vector<int64_t>(sizes.begin(), sizes.end()), step});
    }
    return list;
  }

  Communicator& world_;
  std::map<std::string, double> steps_;
};

}  // namespace

absl::Status LoadOptimizerStateDict(FullyShardedModule& module,
                                    Optimizer& optimizer,
                                    const OptimizerStateDict& dict) {
  const StateDictSettings& settings = module.state_dict_settings();
  absl::Status status;
  if (!dict.entries.empty() && dict.type != settings.type) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "load optimizer: ", StateDictTypeName(settings.type),
        " is set, got a dictionary of ", StateDictTypeName(dict.type)));
  }
  RETURN_IF_ERROR(
      module.mesh().world()->AgreeOnStatus(status, "load optimizer"));
  const auto* full =
      std::get_if<FullOptimStateDictConfig>(&settings.optim_config);
  if (full == nullptr || !full->rank0_only) {
    DictSource source(module, dict);
    return LoadOptimizerStates(module, optimizer, source);
  }
  Rank0Source source(module, dict);
  RETURN_IF_ERROR(source.Share());
  return LoadOptimizerStates(module, optimizer, source);
}

}  // namespace tessera
