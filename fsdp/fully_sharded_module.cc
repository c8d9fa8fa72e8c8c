// What a sharded module offers beside being called.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "fsdp/fully_shard.h"
#include "fsdp/start_values.h"
#include "kernels/status.h"
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
  if (!runner_->running()) return;
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      operation, ": only between steps, not inside a forward or a backward")));
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

FullyShardedModule::NoSyncScope::NoSyncScope(FullyShardedModule& module)
    : module_(module), previous_(module.runner_->sync()) {
  module_.set_requires_gradient_sync(false);
}

FullyShardedModule::NoSyncScope::~NoSyncScope() {
  module_.runner_->set_sync(previous_);
}

void FullyShardedModule::ZeroGrad() {
  runner_->BeginStep();
  for (ShardedParameter& p : parameters_) p.variable.ZeroGrad();
}

void FullyShardedModule::Reshard() {
  CheckIdle("Reshard");
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

}  // namespace

void FullyShardedModule::ForEachFullTensor(
    const std::function<Tensor(const ShardedParameter&)>& local,
    const std::function<void(const std::string&, const Tensor&)>& f) {
  CheckIdle("ForEachFullTensor");
  runner_->ReshardKept();
  for (const ShardedParameter& p : parameters_) {
    const Tensor mine = local(p);
    if (!mine.defined()) continue;
    if (!p.sharded || context_->shard == nullptr) {
      // Where all of it is one rank's shard, it may lie flat.
      f(p.name, p.sharded ? mine.Reshape(p.global_shape) : mine);
      continue;
    }
    f(p.name, GatherTensor(p, mine));
  }
}

// Every rank sends the longest piece's length; the pieces are then put
// together.
Tensor FullyShardedModule::GatherTensor(const ShardedParameter& p,
                                        const Tensor& mine) {
  const Place place = Find(p.variable);
  const ShardedGroup* group = place.group;
  const int index = place.index;
  const int world = context_->shard_size;
  int64_t longest = 0;
  for (int r = 0; r < world; ++r) {
    longest = std::max(longest, ExtentOf(*group, index, r).length);
  }
  const TensorOptions options{mine.dtype(), context_->device};
  MemoryCategoryGuard guard(MemoryCategory::kScratch);
  Tensor part = ops::Zeros({longest}, options);
  ops::Copy(ops::Contiguous(mine).Flatten(),
            part.Narrow(0, 0, mine.num_elements()));
  Tensor parts = Tensor::Empty({world, longest}, options);
  Stream& stream = *context_->shard_stream;
  Stream& compute = ComputeStream(context_->device);
  stream.WaitFor(compute.Record());
  const GatherPart whole[] = {{part, parts.Flatten()}};
  OrThrow(context_->shard->AllGather(whole, stream, p.name));
  compute.WaitFor(stream.Record());
  Shape stored;
  for (int d : p.order) stored.Append(p.global_shape.dim(d));
  Tensor result = Tensor::Empty(stored, options);
  for (int r = 0; r < world; ++r) {
    const Extent extent = ExtentOf(*group, index, r);
    ops::Copy(parts.Select(0, r).Narrow(0, 0, extent.length),
              result.Flatten().Narrow(0, extent.begin, extent.length));
  }
  // The buffers go when the collective is over, see [Note: buffers that two
  // streams use].
  std::vector<int> inverse(p.order.size());
  for (size_t d = 0; d < p.order.size(); ++d) inverse[p.order[d]] = d;
  return result.Permute(inverse);
}

FullyShardedModule::Place FullyShardedModule::Find(
    const Variable& variable) const {
  for (const auto& unit : runner_->units()) {
    for (const auto& group : unit->groups()) {
      auto& parameters = group->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].variable.Is(variable)) {
          return {group.get(), static_cast<int>(i), unit.get()};
        }
      }
    }
  }
  return {};
}

absl::Status FullyShardedModule::SetFullParameter(const std::string& name,
                                                  const Tensor& whole) {
  for (ShardedParameter& p : parameters_) {
    if (p.name != name) continue;
    if (whole.shape() != p.global_shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("SetFullParameter: ", name, " has shape ",
                       p.global_shape.ToString(), ", got ", whole.ToString()));
    }
    return Try([&] {
      CheckIdle("SetFullParameter");
      runner_->ReshardKept();
      const Place place = Find(p.variable);
      if (place.group == nullptr) {
        ops::Copy(whole, p.variable.data());
      } else {
        place.group->SetFromWhole(place.index, whole);
      }
    });
  }
  return absl::NotFoundError(
      absl::StrCat("SetFullParameter: the module has no parameter ", name));
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
  for (const ShardedParameter& p : parameters_) {
    if (p.name != parameter_name) continue;
    const Place place = Find(p.variable);
    return place.unit == nullptr ? UnitState::kUnsharded : place.unit->state();
  }
  return absl::NotFoundError(
      absl::StrCat("StateOf: the module has no parameter ", parameter_name));
}

}  // namespace tessera
