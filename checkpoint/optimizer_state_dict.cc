#include "checkpoint/optimizer_state_dict.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/whole_number.h"
#include "fsdp/comm/json_of_rank0.h"
#include "fsdp/name_differences.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

constexpr char kStep[] = "step";

// An optimizer's states by parameter.
struct States {
  std::map<std::string, int64_t> steps;
  std::map<std::string, std::map<std::string, Tensor>> tensors;
};

States StatesOf(const Optimizer& optimizer) {
  States states;
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    if (const auto* step = std::get_if<int64_t>(&entry.value)) {
      states.steps[entry.parameter] = *step;
    } else {
      states.tensors[entry.parameter][entry.state] =
          std::get<Tensor>(entry.value);
    }
  }
  return states;
}

Tensor StepTensor(int64_t step) {
  return Tensor::FromVector<float>({static_cast<float>(step)}, Shape{},
                                   CpuDevice());
}

// Makes entries of what an optimizer has.
class DictBuilder {
 public:
  DictBuilder(FullyShardedModule& module, const Optimizer& optimizer)
      : module_(module),
        states_(StatesOf(optimizer)),
        makes_zeros_(TorchOptimizerOf(optimizer) == TorchOptimizer::kAdamW) {}

  // What one rank throws in it all ranks throw.
  void Gather(bool full, bool keeps, bool offload) {
    std::set<std::string> names;
    for (const auto& [parameter, tensors] : states_.tensors) {
      for (const auto& [name, tensor] : tensors) names.insert(name);
    }
    if (makes_zeros_) names.insert({"exp_avg", "exp_avg_sq"});
    for (const std::string& name : names) {
      const auto local = [&](const ShardedParameter& p) {
        return Local(p, name);
      };
      const auto add = [&](const std::string& parameter, TensorRows rows) {
        if (keeps) found_[parameter][name] = std::move(rows);
      };
      if (!full) {
        ForEachRows(module_, local,
                    [&](const ShardedParameter& p, TensorRows rows) {
                      add(p.name, std::move(rows));
                    });
        continue;
      }
      module_.ForEachFullTensor(
          local, [&](const std::string& parameter, const Tensor& whole) {
            if (!keeps) return;
            add(parameter, {whole.shape(), Dims(whole.num_dims(), 0),
                            CopyOf(whole, offload)});
          });
    }
  }

  // After Gather.
  std::vector<OptimizerStateDict::Entry> Entries() {
    std::vector<OptimizerStateDict::Entry> entries;
    for (const ShardedParameter& p : module_.Parameters()) {
      if (IsAbsent(p)) continue;
      entries.push_back(
          {p.name, kStep, {Shape{}, {}, StepTensor(states_.steps.at(p.name))}});
      for (auto& [name, rows] : found_[p.name]) {
        entries.push_back({p.name, name, std::move(rows)});
      }
    }
    return entries;
  }

 private:
  bool IsAbsent(const ShardedParameter& p) const {
    const auto step = states_.steps.find(p.name);
    return step == states_.steps.end() ||
           (step->second == 0 && !p.variable.requires_grad());
  }

  Tensor Local(const ShardedParameter& p, const std::string& name) const {
    if (IsAbsent(p)) return {};
    const auto tensors = states_.tensors.find(p.name);
    if (tensors != states_.tensors.end()) {
      const auto found = tensors->second.find(name);
      if (found != tensors->second.end()) return found->second;
    }
    if (!makes_zeros_) return {};
    const Tensor data = p.variable.data();
    return ops::Zeros(data.shape(),
                      {AccumulateDType(data.dtype()), data.device()});
  }

  FullyShardedModule& module_;
  const States states_;
  const bool makes_zeros_;
  std::map<std::string, std::map<std::string, TensorRows>> found_;
};

using Parameters = std::map<std::string, const ShardedParameter*>;

// States that are there, of another shape than their parameter.
void CompareShapes(const ShardedParameter& parameter,
                   const std::map<std::string, Shape>& states,
                   NameDifferences& differences) {
  const Shape& wanted = parameter.global_shape;
  for (const auto& [state, shape] : states) {
    if (state == kStep || shape == wanted) continue;
    differences.mismatched.push_back(
        absl::StrCat(parameter.name, ".", state, " is ", shape.ToString(),
                     ", wanted ", wanted.ToString()));
  }
}

// What of `listing` does not fit the optimizer.
absl::Status Compare(const Parameters& parameters, const Optimizer& optimizer,
                     const OptimizerStateSource::Listing& listing) {
  NameDifferences differences;
  for (const auto& [name, states] : listing) {
    differences.unexpected.insert(name);
  }
  for (const ParameterGroup& group : optimizer.groups()) {
    const bool wants = optimizer.KeepsStates(group.options);
    for (const OptimizerParameter& p : group.parameters) {
      differences.unexpected.erase(p.name);
      const auto found = listing.find(p.name);
      if (found != listing.end()) {
        CompareShapes(*parameters.at(p.name), found->second, differences);
      } else if (wants && p.variable.requires_grad()) {
        differences.missing.push_back(p.name);
      }
    }
  }
  return differences.AsStatus(
      "load optimizer: the saved states are not this optimizer's");
}

class StateLoader {
 public:
  StateLoader(FullyShardedModule& module, Optimizer& optimizer,
              OptimizerStateSource& source)
      : world_(*module.mesh().world()), optimizer_(optimizer), source_(source) {
    for (const ShardedParameter& p : module.Parameters()) {
      parameters_[p.name] = &p;
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(world_.AgreeOnStatus(CheckNames(), "load optimizer"));
    RETURN_IF_ERROR(world_.AgreeOnStatus(
        Compare(parameters_, optimizer_, source_.listing()), "load optimizer"));
    std::vector<OptimizerOptions> before;
    for (const ParameterGroup& group : optimizer_.groups()) {
      before.push_back(group.options);
    }
    RETURN_IF_ERROR(TakeOptions());
    absl::Status status = MakeStates();
    if (status.ok()) return Fill();
    for (size_t g = 0; g < before.size(); ++g) {
      optimizer_.options(static_cast<int>(g)) = before[g];
    }
    return status;
  }

 private:
  absl::Status CheckNames() const {
    for (const ParameterGroup& group : optimizer_.groups()) {
      for (const OptimizerParameter& p : group.parameters) {
        const auto found = parameters_.find(p.name);
        if (found != parameters_.end() &&
            found->second->variable.Is(p.variable)) {
          continue;
        }
        return absl::FailedPreconditionError(absl::StrCat(
            "load optimizer: ", p.name,
            " of the optimizer is not the sharded module's; make it from its "
            "Parameters()"));
      }
    }
    return absl::OkStatus();
  }

  // Rank 0 says what they are.
  absl::Status TakeOptions() {
    ASSIGN_OR_RETURN(
        const nlohmann::json shared,
        JsonOfRank0(
            world_,
            [&]() -> absl::StatusOr<nlohmann::json> {
              ASSIGN_OR_RETURN(const std::vector<PickleDict> groups,
                               source_.ReadGroups());
              ASSIGN_OR_RETURN(const std::vector<OptimizerOptions> options,
                               OptionsOfParamGroups(optimizer_, groups));
              return OptionsToJson(options);
            },
            "load optimizer"));
    absl::Status status;
    if (shared.size() != optimizer_.groups().size()) {
      status = absl::FailedPreconditionError(
          "load optimizer: rank 0's optimizer has another number of groups");
    }
    RETURN_IF_ERROR(world_.AgreeOnStatus(status, "load optimizer"));
    const std::vector<OptimizerOptions> options = OptionsFromJson(shared);
    for (size_t g = 0; g < options.size(); ++g) {
      optimizer_.options(static_cast<int>(g)) = options[g];
    }
    return absl::OkStatus();
  }

  // The optimizer checks names and makes its tensors, with zeros in them.
  absl::Status MakeStates() {
    std::vector<NamedOptimizerState> states;
    absl::Status status = Try([&] { MakeZeros(); });
    for (const ParameterGroup& group : optimizer_.groups()) {
      for (const OptimizerParameter& p : group.parameters) {
        const absl::Status added = Try([&] { return AddStates(p, states); });
        if (status.ok()) status = added;
      }
    }
    if (status.ok()) {
      status = Try([&] { return optimizer_.LoadState(states); });
    }
    return world_.AgreeOnStatus(status, "load optimizer");
  }

  void MakeZeros() {
    int64_t longest = 1;
    Device device = CurrentDevice();
    for (const auto& [name, p] : parameters_) {
      longest = std::max(
          longest,
          p->length * ElementBytes(AccumulateDType(p->variable.dtype())));
      device = p->variable.device();
    }
    zeros_ = ops::Zeros({longest}, {DType::kUInt8, device});
  }

  absl::Status AddStates(const OptimizerParameter& p,
                         std::vector<NamedOptimizerState>& states) {
    const auto found = source_.listing().find(p.name);
    if (found == source_.listing().end()) {
      states.push_back({p.name, kStep, int64_t{0}});
      return absl::OkStatus();
    }
    // torch's SGD counts no steps: there has been one where there is a buffer.
    int64_t step = found->second.empty() ? 0 : 1;
    if (found->second.contains(kStep)) {
      ASSIGN_OR_RETURN(const double number, source_.ReadStep(p.name));
      ASSIGN_OR_RETURN(
          step, WholeNumber(number, absl::StrCat("load optimizer: the step of ",
                                                 p.name)));
    }
    states.push_back({p.name, kStep, step});
    if (step == 0 || !zeros_.defined()) return absl::OkStatus();
    for (const auto& [state, shape] : found->second) {
      if (state == kStep) continue;
      const Tensor data = p.variable.data();
      states.push_back(
          {p.name, state,
           Tensor::View(zeros_.storage(), 0, Shape{data.num_elements()},
                        AccumulateDType(data.dtype()))});
    }
    return absl::OkStatus();
  }

  absl::Status Fill() {
    zeros_ = Tensor();
    absl::Status status;
    for (const NamedOptimizerState& entry : optimizer_.NamedState()) {
      const Tensor* tensor = std::get_if<Tensor>(&entry.value);
      if (tensor == nullptr) continue;
      const absl::Status filled = Try([&]() -> absl::Status {
        ASSIGN_OR_RETURN(
            const Tensor part,
            source_.ReadPart(*parameters_.at(entry.parameter), entry.state));
        if (tensor->num_elements() == 0) return absl::OkStatus();
        ops::Copy(part, tensor->Flatten());
        ComputeStream(tensor->device()).Synchronize();
        return absl::OkStatus();
      });
      if (status.ok()) status = filled;
    }
    return world_.AgreeOnStatus(status, "load optimizer");
  }

  Communicator& world_;
  Optimizer& optimizer_;
  OptimizerStateSource& source_;
  Parameters parameters_;
  Tensor zeros_;
};

}  // namespace

absl::StatusOr<OptimizerStateDict> GetOptimizerStateDict(
    FullyShardedModule& module, const Optimizer& optimizer) {
  const StateDictSettings& settings = module.state_dict_settings();
  const auto* full =
      std::get_if<FullOptimStateDictConfig>(&settings.optim_config);
  Communicator& world = *module.mesh().world();
  const bool keeps = full == nullptr || !full->rank0_only || world.rank() == 0;
  OptimizerStateDict dict;
  dict.type = settings.type;
  DictBuilder builder(module, optimizer);
  RETURN_IF_ERROR(Try([&] {
    builder.Gather(full != nullptr, keeps,
                   full != nullptr && full->offload_to_cpu);
  }));
  const absl::Status status = Try([&] {
    if (keeps) {
      dict.entries = builder.Entries();
      dict.param_groups = ParamGroupsOf(optimizer);
    }
    for (const ShardedParameter& p : module.Parameters()) {
      ComputeStream(p.variable.device()).Synchronize();
      break;
    }
  });
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "optimizer state dict"));
  return dict;
}

absl::Status LoadOptimizerStates(FullyShardedModule& module,
                                 Optimizer& optimizer,
                                 OptimizerStateSource& source) {
  return StateLoader(module, optimizer, source).Run();
}

}  // namespace tessera
