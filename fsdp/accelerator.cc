#include "fsdp/accelerator.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/prepare_model.h"
#include "fsdp/switch_optimizer_parameters.h"
#include "kernels/status.h"

namespace tessera {
namespace {

bool SaysNothing(const MixedPrecision& precision) {
  return !precision.param_dtype.has_value() &&
         !precision.reduce_dtype.has_value() &&
         !precision.buffer_dtype.has_value() &&
         !precision.output_dtype.has_value() &&
         !precision.cast_forward_inputs.has_value() &&
         !precision.keep_low_precision_grads;
}

absl::Status Resolve(AcceleratorOptions& options) {
  FullyShardOptions& sharding = options.plugin.sharding;
  RETURN_IF_ERROR(options.plugin.StateDict().status());
  if (options.mixed_precision == "no") return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const MixedPrecision precision,
      MixedPrecision::Parse(options.mixed_precision, sharding.fsdp_version));
  if (SaysNothing(sharding.mixed_precision)) {
    sharding.mixed_precision = precision;
  }
  return absl::OkStatus();
}

// Every parameter of the optimizer is one of the model.
absl::Status CheckNames(const Module& model, const Optimizer& optimizer) {
  std::map<std::string, Variable> known;
  for (const NamedVariable& p : model.NamedParameters()) {
    known[p.name] = p.variable;
  }
  std::vector<std::string> unknown;
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const OptimizerParameter& p : group.parameters) {
      const auto found = known.find(p.name);
      if (found == known.end() || !found->second.Is(p.variable)) {
        unknown.push_back(p.name);
      }
    }
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "prepare: the optimizer has ", absl::StrJoin(unknown, ", "),
      ", which the model does not have under that name; make it from "
      "NamedParameters() of the model"));
}

absl::StatusOr<std::shared_ptr<FullyShardedModule>> Shard(
    Accelerator& accelerator, Module& model) {
  if (accelerator.plugin().sharding.fsdp_version != 1) {
    return Fsdp2PrepareModel(accelerator, model);
  }
  if (auto prepared = accelerator.Prepared(model)) return prepared;
  accelerator.Begin(PrepareStep::kShard);
  FullyShardOptions options = accelerator.plugin().sharding;
  options.sync_module_states |= accelerator.plugin().cpu_ram_efficient_loading;
  ASSIGN_OR_RETURN(std::shared_ptr<FullyShardedModule> sharded,
                   FullyShard(model, accelerator.mesh(), options));
  sharded->set_state_dict_settings(OrThrow(accelerator.plugin().StateDict()));
  accelerator.Remember(sharded);
  return sharded;
}

}  // namespace

const char* PrepareStepName(PrepareStep step) {
  switch (step) {
    case PrepareStep::kUpcast:
      return "upcast";
    case PrepareStep::kSnapshot:
      return "snapshot";
    case PrepareStep::kToMeta:
      return "to meta";
    case PrepareStep::kShard:
      return "shard";
    case PrepareStep::kLoad:
      return "load";
    case PrepareStep::kRestoreBuffers:
      return "restore buffers";
    case PrepareStep::kSwitch:
      break;
  }
  return "switch";
}

absl::StatusOr<std::unique_ptr<Accelerator>> Accelerator::Create(
    const std::shared_ptr<Communicator>& world,
    const AcceleratorOptions& options) {
  AcceleratorOptions resolved = options;
  RETURN_IF_ERROR(world->AgreeOnStatus(Resolve(resolved), "accelerator"));
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceMesh> mesh,
                   DeviceMesh::Create(world, options.mesh));
  return std::unique_ptr<Accelerator>(
      new Accelerator(std::move(resolved), std::move(mesh)));
}

absl::StatusOr<std::shared_ptr<FullyShardedModule>> Accelerator::Prepare(
    Module& model, Optimizer& optimizer) {
  RETURN_IF_ERROR(
      world()->AgreeOnStatus(CheckNames(model, optimizer), "prepare"));
  ASSIGN_OR_RETURN(std::shared_ptr<FullyShardedModule> sharded,
                   Shard(*this, model));
  Begin(PrepareStep::kSwitch);
  RETURN_IF_ERROR(world()->AgreeOnStatus(
      Fsdp2SwitchOptimizerParameters(optimizer, MappingTo(*sharded)),
      "switch the optimizer's parameters"));
  return sharded;
}

std::shared_ptr<FullyShardedModule> Accelerator::Prepared(
    const Module& model) const {
  const auto found = prepared_.find(&model);
  return found == prepared_.end() ? nullptr : found->second.lock();
}

void Accelerator::Begin(PrepareStep step) const {
  if (options_.on_prepare_step) options_.on_prepare_step(step);
}

void Accelerator::Remember(const std::shared_ptr<FullyShardedModule>& model) {
  prepared_[&model->module()] = model;
}

}  // namespace tessera
