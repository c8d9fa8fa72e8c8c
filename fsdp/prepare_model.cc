#include "fsdp/prepare_model.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/load_full_state_dict.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// The modules at both ends of a language model; null where it has none.
struct Ends {
  Module* embedding = nullptr;
  Module* norm = nullptr;
  Module* head = nullptr;
};

bool Contains(Module& module, const Module* searched) {
  for (const NamedModule& m : module.NamedModules()) {
    if (m.module == searched) return true;
  }
  return false;
}

// The last child with "Norm" in its class, of the child that has the embedding.
Module* FinalNorm(Module& model, const Module* embedding) {
  Module* norm = nullptr;
  for (const NamedModule& base : model.Children()) {
    if (!Contains(*base.module, embedding)) continue;
    for (const NamedModule& child : base.module->Children()) {
      if (absl::StrContains(child.module->class_name(), "Norm")) {
        norm = child.module;
      }
    }
  }
  return norm;
}

Ends FindEnds(Module& model) {
  Ends ends;
  for (const NamedModule& m : model.NamedModules()) {
    if (ends.embedding == nullptr && m.module->class_name() == "Embedding") {
      ends.embedding = m.module;
    }
    if (m.name == "lm_head") ends.head = m.module;
  }
  if (ends.embedding == nullptr || ends.head == nullptr) return {};
  ends.norm = FinalNorm(model, ends.embedding);
  return ends;
}

bool AreTied(const Module& a, const Module& b) {
  for (const NamedVariable& p : a.own_parameters()) {
    for (const NamedVariable& q : b.own_parameters()) {
      if (p.variable.Is(q.variable)) return true;
    }
  }
  return false;
}

std::vector<JointUnit> UnitsOfEnds(Module& model) {
  const Ends ends = FindEnds(model);
  if (ends.head == nullptr) return {};
  const bool tied = AreTied(*ends.embedding, *ends.head);
  JointUnit tail = {.modules = {}, .stays_gathered = true};
  if (ends.norm != nullptr) tail.modules.push_back(ends.norm);
  if (tied) tail.modules.push_back(ends.embedding);
  tail.modules.push_back(ends.head);
  std::vector<JointUnit> units = {std::move(tail)};
  if (!tied) {
    units.push_back({.modules = {ends.embedding}, .stays_gathered = false});
  }
  return units;
}

void Upcast(Module& model) {
  const MemoryCategoryGuard guard(MemoryCategory::kParameter);
  for (NamedVariable p : model.NamedParameters()) {
    if (!p.variable.requires_grad() || !IsFloating(p.variable.dtype())) {
      continue;
    }
    p.variable.set_data(ops::Cast(p.variable.data(), DType::kFloat32));
  }
}

// Whatever values start with is loaded over.
void StartWithZeros(Module& module, const Initializer& initializer) {
  for (const NamedVariable& p : module.own_parameters()) {
    initializer.Constant(p.variable, 0);
  }
  for (const NamedBuffer& b : module.own_buffers()) {
    initializer.Constant(b.variable, 0);
  }
}

// What rank 0 has of the model: its tensors, which the model then gives up.
struct Snapshot {
  FullStateDict state;
  FullStateDict all;  // With buffers that checkpoints lack.
};

absl::StatusOr<Snapshot> TakeSnapshot(Module& model) {
  Snapshot snapshot;
  std::vector<std::string> deferred;
  const auto take = [&](const std::string& name, const Variable& variable,
                        bool persistent) {
    if (variable.data().is_meta()) deferred.push_back(name);
    if (persistent) snapshot.state[name] = variable.data();
    snapshot.all[name] = variable.data();
  };
  for (const NamedVariable& p : model.NamedParameters()) {
    take(p.name, p.variable, true);
  }
  for (const NamedBuffer& b : model.NamedBuffers()) {
    take(b.name, b.variable, b.persistent);
  }
  if (deferred.empty()) return snapshot;
  return absl::FailedPreconditionError(absl::StrCat(
      "prepare: with cpu_ram_efficient_loading rank 0 holds the values, but ",
      absl::StrJoin(deferred, ", "), " of it are on the meta device"));
}

class Preparation {
 public:
  Preparation(Accelerator& accelerator, Module& model)
      : accelerator_(accelerator),
        world_(*accelerator.world()),
        model_(model),
        loads_(accelerator.plugin().cpu_ram_efficient_loading) {}

  absl::StatusOr<std::shared_ptr<FullyShardedModule>> Run() {
    RETURN_IF_ERROR(Check());
    if (accelerator_.mixed_precision() != "no") {
      accelerator_.Begin(PrepareStep::kUpcast);
      RETURN_IF_ERROR(
          world_.AgreeOnStatus(Try([&] { Upcast(model_); }), "upcast"));
    }
    if (loads_) RETURN_IF_ERROR(GiveUpValues());
    accelerator_.Begin(PrepareStep::kShard);
    ASSIGN_OR_RETURN(std::shared_ptr<FullyShardedModule> sharded,
                     FullyShard(model_, accelerator_.mesh(), Options()));
    sharded->set_state_dict_settings(
        OrThrow(accelerator_.plugin().StateDict()));
    if (loads_) RETURN_IF_ERROR(TakeValues(*sharded));
    accelerator_.Remember(sharded);
    return sharded;
  }

 private:
  absl::Status Check() {
    const int version = accelerator_.plugin().sharding.fsdp_version;
    if (version == 2) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("prepare: Fsdp2PrepareModel is for version 2, the plugin "
                     "says ",
                     version, "; call Accelerator::Prepare"));
  }

  FullyShardOptions Options() const {
    FullyShardOptions options = accelerator_.plugin().sharding;
    for (JointUnit& unit : UnitsOfEnds(model_)) {
      options.joint_units.push_back(std::move(unit));
    }
    if (loads_) options.param_init_fn = StartWithZeros;
    return options;
  }

  absl::Status GiveUpValues() {
    absl::Status status;
    if (world_.rank() == 0) {
      accelerator_.Begin(PrepareStep::kSnapshot);
      absl::StatusOr<Snapshot> snapshot = TakeSnapshot(model_);
      status = snapshot.status();
      if (snapshot.ok()) snapshot_ = *std::move(snapshot);
    }
    RETURN_IF_ERROR(world_.AgreeOnStatus(status, "snapshot"));
    accelerator_.Begin(PrepareStep::kToMeta);
    return world_.AgreeOnStatus(Try([&] { model_.To(kMetaDevice); }),
                                "to meta");
  }

  absl::Status TakeValues(FullyShardedModule& sharded) {
    accelerator_.Begin(PrepareStep::kLoad);
    RETURN_IF_ERROR(
        Fsdp2LoadFullStateDict(accelerator_, sharded, snapshot_.state));
    accelerator_.Begin(PrepareStep::kRestoreBuffers);
    return LoadBuffers(sharded);
  }

  absl::Status LoadBuffers(FullyShardedModule& sharded) {
    for (const NamedBuffer& b : sharded.module().NamedBuffers()) {
      if (b.persistent) continue;
      const Tensor data = b.variable.data();
      absl::Status status;
      if (world_.rank() == 0) {
        status = Try([&] { ops::Copy(snapshot_.all.at(b.name), data); });
      }
      RETURN_IF_ERROR(world_.AgreeOnStatus(status, b.name));
      if (data.num_elements() == 0) continue;
      const Tensor bytes[] = {Tensor::View(
          data.storage(), data.storage_offset() * ElementBytes(data.dtype()),
          {data.num_bytes()}, DType::kUInt8)};
      RETURN_IF_ERROR(
          world_.Broadcast(bytes, 0, ComputeStream(data.device()), b.name));
    }
    return absl::OkStatus();
  }

  Accelerator& accelerator_;
  Communicator& world_;
  Module& model_;
  const bool loads_;
  Snapshot snapshot_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<FullyShardedModule>> Fsdp2PrepareModel(
    Accelerator& accelerator, Module& model) {
  if (auto prepared = accelerator.Prepared(model)) return prepared;
  return Preparation(accelerator, model).Run();
}

}  // namespace tessera
