// What a sharded module offers beside being called.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "fsdp/fully_shard.h"
#include "fsdp/start_values.h"
#include "kernels/status.h"
#include "runtime/autograd/engine.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

// Queued work still uses the buffers. Behind an exception too it ends: of the
// ranks that stop early, the one that issued the fewest collectives waits for
// none that another has not issued, and its end ends the others' waits.
FullyShardedModule::~FullyShardedModule() {
  if (context_ == nullptr || context_->shard_stream == nullptr) return;
  (void)Try([&] { ComputeStream(context_->device).Synchronize(); });
}

void FullyShardedModule::CheckIdle(const char* operation) const {
  runner_->LeaveThrownBackward();
  if (!runner_->running()) return;
  throw Error(absl::FailedPreconditionError(
      absl::StrCat(operation,
                   ": only between steps, not inside a forward or a backward; "
                   "behind a forward that threw, call Reshard first")));
}

void FullyShardedModule::set_gradient_divisor(double divisor) {
  CheckIdle("set_gradient_divisor");
  OrThrow(CheckGradientDivisor(divisor));
  context_->divisor = divisor;
}

void FullyShardedModule::set_requires_gradient_sync(bool sync) {
  CheckIdle("set_requires_gradient_sync");
  runner_->set_sync(sync);
}

void FullyShardedModule::set_requires_all_reduce(bool all_reduce) {
  CheckIdle("set_requires_all_reduce");
  if (context_->replicate == nullptr) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "set_requires_all_reduce: on a mesh of ",
        context_->mesh->shape().ToString(),
        " there are no replicas, so nothing is all-reduced; give the mesh a "
        "replicate axis, or put off all reductions by "
        "set_requires_gradient_sync")));
  }
  context_->all_reduce = all_reduce;
}

FullyShardedModule::NoSyncScope::NoSyncScope(FullyShardedModule& module)
    : module_(module), previous_(module.runner_->sync()) {
  module_.set_requires_gradient_sync(false);
}

FullyShardedModule::NoSyncScope::~NoSyncScope() {
  module_.runner_->set_sync(previous_);
}

void FullyShardedModule::ZeroGrad() {
  runner_->ZeroGrad();
  for (ShardedParameter& p : parameters_) p.variable.ZeroGrad();
}

void FullyShardedModule::Reshard() {
  if (Engine::InBackward()) {
    throw Error(absl::FailedPreconditionError(
        "Reshard: only between steps, not inside a backward"));
  }
  if (runner_->running()) runner_->Abandon();
  runner_->ReshardKept();
}

void FullyShardedModule::ForEachFullParameter(
    const std::function<void(const std::string&, const Tensor&)>& f) {
  ForEachFullTensor([](const ShardedParameter& p) { return p.variable.data(); },
                    f);
}

namespace {

// What a rank keeps of a parameter.
struct Extent {
  int64_t begin = 0;
  int64_t length = 0;
};

Extent ExtentOf(const ShardedGroup& group, int parameter, int rank) {
  for (const ShardPiece& piece : group.layout().pieces[rank]) {
    if (piece.parameter == parameter) {
      return {piece.parameter_begin, piece.length};
    }
  }
  return {};
}

Tensor InGlobalOrder(const Tensor& stored, const std::vector<int>& order) {
  std::vector<int> inverse(order.size());
  for (size_t d = 0; d < order.size(); ++d) inverse[order[d]] = d;
  return stored.Permute(inverse);
}

}  // namespace

// [Note: one rank's error while gathering]
// A rank that threw alone would leave the others waiting in a gather. So all
// ranks say that they have what a gather needs, memory included, before it
// begins; a rank with an error says that instead, whatever the others are about
// to gather, and the error is thrown everywhere. Only a rank that keeps
// parameters whole goes on alone until the next gather, or the end.
void FullyShardedModule::ForEachFullTensor(
    const std::function<Tensor(const ShardedParameter&)>& local,
    const std::function<void(const std::string&, const Tensor&)>& f) {
  Communicator& world = *context_->mesh->world();
  const auto agree = [&](absl::Status status) {
    // What is queued may still fail.
    if (status.ok()) {
      status = Try([&] { ComputeStream(context_->device).Synchronize(); });
    }
    OrThrow(world.AgreeOnStatus(status, "gather whole tensors"));
  };
  absl::Status status = Try([&] {
    CheckIdle("ForEachFullTensor");
    runner_->ReshardKept();
  });
  for (size_t i = 0; status.ok() && i < parameters_.size(); ++i) {
    const ShardedParameter& p = parameters_[i];
    Tensor value;
    status = Try([&] { value = WholeOf(p, local(p)); });
    if (!status.ok()) break;
    if (!value.defined()) continue;
    if (p.sharded && context_->shard != nullptr) {
      agree(absl::OkStatus());
      GatherInto(p, value);
      value = InGlobalOrder(value, p.order);
    }
    status = Try([&] { f(p.name, value); });
  }
  agree(status);
}

// The whole in the order of its storage, of which this rank's part is set;
// where nothing is to be gathered, the value itself.
Tensor FullyShardedModule::WholeOf(const ShardedParameter& p,
                                   const Tensor& mine) const {
  if (!mine.defined() || !p.sharded) return mine;
  // All of it may be one rank's shard, and lie flat.
  if (context_->shard == nullptr) return mine.Reshape(p.global_shape);
  const Place place = Find(p.variable);
  const Extent extent =
      ExtentOf(*place.group, place.index, context_->shard->rank());
  Shape stored;
  for (int d : p.order) stored.Append(p.global_shape.dim(d));
  MemoryCategoryGuard guard(MemoryCategory::kScratch);
  Tensor whole = Tensor::Empty(stored, {mine.dtype(), context_->device});
  ops::Copy(ops::Contiguous(mine).Flatten(),
            whole.Flatten().Narrow(0, extent.begin, extent.length));
  return whole;
}

// Equal parts are gathered, others handed out by the ranks that have them: all
// in place, so that nothing is padded or copied again. Compute is idle, on
// which the ranks have agreed. Is over when it returns: the next thing that
// ranks say to each other may take the same way.
void FullyShardedModule::GatherInto(const ShardedParameter& p,
                                    const Tensor& whole) {
  if (whole.num_elements() == 0) return;
  const Place place = Find(p.variable);
  Communicator& shard = *context_->shard;
  Stream& stream = *context_->shard_stream;
  const Tensor flat = whole.Flatten();
  std::vector<Tensor> parts;
  bool equal = true;
  for (int r = 0; r < context_->shard_size; ++r) {
    const Extent extent = ExtentOf(*place.group, place.index, r);
    parts.push_back(flat.Narrow(0, extent.begin, extent.length));
    equal = equal && extent.length == parts[0].num_elements();
  }
  if (equal) {
    const GatherPart part{parts[shard.rank()], flat};
    OrThrow(shard.AllGather({&part, 1}, stream, p.name));
  }
  for (int r = 0; !equal && r < context_->shard_size; ++r) {
    if (parts[r].num_elements() == 0) continue;
    OrThrow(shard.Broadcast({&parts[r], 1}, r, stream, p.name));
  }
  stream.Synchronize();
}

void FullyShardedModule::MakeIndex() const {
  if (!by_name_.empty()) return;
  for (const ShardedParameter& p : parameters_) by_name_[p.name] = &p;
  for (const auto& unit : runner_->units()) {
    for (const auto& group : unit->groups()) {
      auto& parameters = group->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        places_[parameters[i].variable.impl().get()] = {
            group.get(), static_cast<int>(i), unit.get()};
      }
    }
  }
}

FullyShardedModule::Place FullyShardedModule::Find(
    const Variable& variable) const {
  MakeIndex();
  const auto found = places_.find(variable.impl().get());
  return found == places_.end() ? Place() : found->second;
}

const ShardedParameter* FullyShardedModule::Find(
    const std::string& name) const {
  MakeIndex();
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

absl::Status FullyShardedModule::SetFullParameter(const std::string& name,
                                                  const Tensor& whole) {
  const ShardedParameter* p = Find(name);
  if (p == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("SetFullParameter: the module has no parameter ", name));
  }
  if (whole.shape() != p->global_shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("SetFullParameter: ", name, " has shape ",
                     p->global_shape.ToString(), ", got ", whole.ToString()));
  }
  return Try([&] {
    CheckIdle("SetFullParameter");
    runner_->ReshardKept();
    const Place place = Find(p->variable);
    if (place.group == nullptr) {
      ops::Copy(whole, p->variable.data());
    } else {
      place.group->SetFromWhole(place.index, whole);
    }
  });
}

absl::Status FullyShardedModule::CheckIgnoredParameters() {
  std::vector<NamedVariable> ignored;
  for (const ShardedParameter& p : parameters_) {
    if (!p.sharded) ignored.push_back({p.name, p.variable});
  }
  return CheckEqualValues(ignored, *mesh().world(),
                          {.what = "parameters kept out of sharding",
                           .remedy = "reduce their gradients on all ranks, or "
                                     "set reduce_ignored_gradients"});
}

void FullyShardedModule::ReleaseBuffers() {
  CheckIdle("ReleaseBuffers");
  runner_->ReshardKept();
  // It has waited for every collective.
  ComputeStream(context_->device).Synchronize();
  for (const auto& pool : {&context_->gathered, &context_->gradients,
                           &context_->wire, &context_->local}) {
    (*pool)->ReleaseFree();
  }
  AllocatorOf(context_->device).ReleaseCache();
}

absl::StatusOr<UnitState> FullyShardedModule::StateOf(
    const std::string& parameter_name) const {
  const ShardedParameter* p = Find(parameter_name);
  if (p == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("StateOf: the module has no parameter ", parameter_name));
  }
  const Place place = Find(p->variable);
  return place.unit == nullptr ? UnitState::kUnsharded : place.unit->state();
}

}  // namespace tessera
