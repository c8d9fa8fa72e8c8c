#include "fsdp/unit.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/gradient_factors.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// A unit's parameters by what they must have in common.
std::vector<std::vector<GroupParameter>> SplitIntoGroups(
    std::vector<GroupParameter> parameters) {
  std::map<std::tuple<DType, bool>, size_t> index;
  std::vector<std::vector<GroupParameter>> groups;
  for (GroupParameter& p : parameters) {
    const auto key =
        std::make_tuple(p.variable.dtype(), p.variable.requires_grad());
    const auto [it, added] = index.emplace(key, groups.size());
    if (added) groups.emplace_back();
    groups[it->second].push_back(std::move(p));
  }
  return groups;
}

GroupOptions OptionsOfGroup(const ShardingContext& context,
                            const std::string& unit_name, DType master) {
  const MixedPrecision& mixed = context.options.mixed_precision;
  GroupOptions options;
  options.unit_name = unit_name;
  options.fsdp_version = context.options.fsdp_version;
  options.world_size = context.shard_size;
  options.rank = context.shard_rank;
  options.device = context.device;
  options.compute_dtype =
      IsFloating(master) ? mixed.param_dtype.value_or(master) : master;
  // Version 1 reduces in param_dtype unless told otherwise; version 2 in the
  // master's type.
  const DType unset = context.options.fsdp_version == 1
                          ? options.compute_dtype
                          : AccumulateDType(master);
  options.reduce_dtype = mixed.reduce_dtype.value_or(unset);
  return options;
}

Tensor SlotVector(Slot* slot, int64_t length, DType dtype) {
  return Tensor::View(slot->memory, 0, {length}, dtype);
}

void Attach(Storage& storage, Slot* slot) {
  storage.Attach(slot->memory->data(), slot->memory);
}

}  // namespace

Unit::Unit(int index, std::string name, std::vector<GroupParameter> parameters,
           ShardingContext* context)
    : index_(index), name_(std::move(name)), context_(context) {
  for (auto& members : SplitIntoGroups(std::move(parameters))) {
    const DType master = members[0].variable.dtype();
    groups_.push_back(std::make_unique<ShardedGroup>(
        std::move(members), OptionsOfGroup(*context_, name_, master)));
  }
  buffers_.resize(groups_.size());
}

bool Unit::trainable() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->trainable(); });
}

bool Unit::has_frozen() const {
  for (const auto& group : groups_) {
    for (const auto& p : group->parameters()) {
      if (!p.variable.requires_grad()) return true;
    }
  }
  return false;
}

bool Unit::always_whole() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->always_whole(); });
}

// Without the limiter every unit has slots of its own.
int Unit::SlotKey() const {
  return context_->options.limit_all_gathers ? 0 : index_ + 1;
}

// The slot of the gathered buffer as one vector.
Tensor Unit::SlotWhole(size_t g) const {
  const ShardedGroup& group = *groups_[g];
  return Tensor::View(
      group.in_place() ? group.common() : buffers_[g].gathered->memory, 0,
      {group.layout().unsharded_length}, group.compute_dtype());
}

// Whether all ranks see one gathered buffer.
bool Unit::IsCommon(size_t g) const {
  return groups_[g]->in_place() || buffers_[g].gathered->common;
}

// The shard in the type of the gathered buffer, on the shard's stream.
Tensor Unit::CastShard(size_t g) {
  ShardedGroup& group = *groups_[g];
  if (group.compute_dtype() == group.master_dtype()) return group.shard();
  const int64_t length = group.layout().shard_length;
  Slot*& slot = buffers_[g].cast;
  slot = context_->local->Take(length * ElementBytes(group.compute_dtype()));
  context_->shard_stream->WaitFor(slot->free);
  Tensor cast = SlotVector(slot, length, group.compute_dtype());
  ops::Copy(group.shard(), cast);
  return cast;
}

void Unit::Gather() {
  TESSERA_CHECK(state_ == UnitState::kSharded);
  state_ = UnitState::kGathering;
  gathered_event_ = Event();
  if (always_whole()) return;
  AttachGathered();
  if (kept_) {
    GatherFromKept();
  } else {
    GatherFromShards();
  }
}

// Room for what will be gathered.
void Unit::AttachGathered() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    ShardedGroup& group = *groups_[g];
    if (group.always_whole()) continue;
    if (group.in_place()) {
      group.gathered()->Attach(group.common()->data(), group.common());
      continue;
    }
    Slot*& slot = buffers_[g].gathered;
    slot = context_->gathered->Take(group.gathered_bytes(), SlotKey());
    context_->shard_stream->WaitFor(slot->free);
    Attach(*group.gathered(), slot);
  }
}

void Unit::GatherFromShards() {
  Stream& stream = *context_->shard_stream;
  StreamGuard guard(stream);
  std::vector<GatherPart> parts;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->always_whole()) continue;
    if (context_->shard == nullptr) {
      ops::Copy(groups_[g]->shard(), SlotWhole(g));  // A cast alone.
      continue;
    }
    groups_[g]->AppendGatherParts(CastShard(g), SlotWhole(g), IsCommon(g),
                                  parts);
  }
  if (!parts.empty()) {
    OrThrow(context_->shard->AllGather(parts, stream, name_));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g]->always_whole() && !IsCommon(g)) {
      groups_[g]->CopyOutPacked(SlotWhole(g));
    }
    Slot*& cast = buffers_[g].cast;
    if (cast != nullptr) context_->local->GiveBack(cast, stream.Record());
    cast = nullptr;
  }
  gathered_event_ = stream.Record();
}

void Unit::FinishGather() {
  TESSERA_CHECK(state_ == UnitState::kGathering);
  compute().WaitFor(gathered_event_);
  for (auto& group : groups_) group->ShowUnsharded();
  state_ = UnitState::kUnsharded;
}

Event Unit::Reshard() {
  if (state_ == UnitState::kSharded) return Event();
  // A gather that nobody waited for is not ordered before compute.
  if (state_ == UnitState::kGathering) compute().WaitFor(gathered_event_);
  Event free = compute().Record();
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->ShowLocal();
    if (groups_[g]->always_whole()) continue;
    groups_[g]->gathered()->Release();
    if (groups_[g]->in_place()) continue;
    context_->gathered->GiveBack(buffers_[g].gathered, free);
    buffers_[g].gathered = nullptr;
  }
  state_ = UnitState::kSharded;
  return free;
}

// Of each collective part, the W / r pieces that this rank keeps, one after the
// other.
std::vector<Tensor> Unit::KeptParts(size_t g) const {
  const ShardedGroup& group = *groups_[g];
  const int64_t pieces =
      context_->shard_size / context_->post_forward->world_size();
  std::vector<Tensor> result;
  int64_t at = 0;
  for (const CollectivePart& part : group.layout().parts) {
    const int64_t length = part.part_length * pieces;
    result.push_back(Tensor::View(buffers_[g].kept->memory, at, {length},
                                  group.compute_dtype()));
    at += length;
  }
  return result;
}

Event Unit::ReshardPostForward() {
  TESSERA_CHECK(state_ == UnitState::kUnsharded && !kept_);
  const int r = context_->post_forward->world_size();
  const int64_t pieces = context_->shard_size / r;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ShardedGroup& group = *groups_[g];
    buffers_[g].kept =
        context_->local->Take(group.layout().shard_length * pieces *
                                  ElementBytes(group.compute_dtype()),
                              index_ + 1);
    // The slot is this unit's alone, and compute has waited for the gather that
    // read it last: no need to wait for kept->free.
    const Tensor whole = group.WholeParameters();
    const std::vector<Tensor> kept = KeptParts(g);
    for (size_t i = 0; i < kept.size(); ++i) {
      const CollectivePart& part = group.layout().parts[i];
      const int64_t length = part.part_length * pieces;
      ops::Copy(whole.Narrow(0,
                             part.unsharded_offset +
                                 context_->post_forward->rank() * length,
                             length),
                kept[i]);
    }
  }
  kept_ = true;
  return Reshard();
}

void Unit::GatherFromKept() {
  Stream& stream = *context_->shard_stream;
  StreamGuard guard(stream);
  // The kept pieces were written on the compute stream.
  stream.WaitFor(compute().Record());
  const int r = context_->post_forward->world_size();
  std::vector<GatherPart> parts;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Tensor whole = SlotWhole(g);
    const std::vector<Tensor> kept = KeptParts(g);
    for (size_t i = 0; i < kept.size(); ++i) {
      const CollectivePart& part = groups_[g]->layout().parts[i];
      parts.push_back({kept[i], whole.Narrow(0, part.unsharded_offset,
                                             kept[i].num_elements() * r)});
    }
  }
  OrThrow(context_->post_forward->AllGather(parts, stream, name_));
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->CopyOutPacked(SlotWhole(g));
    context_->local->GiveBack(buffers_[g].kept, stream.Record());
    buffers_[g].kept = nullptr;
  }
  gathered_event_ = stream.Record();
  kept_ = false;
}

void Unit::EnsureGradientBuffer(size_t g) {
  ShardedGroup& group = *groups_[g];
  if (!group.gradient()->released()) return;
  Slot*& slot = buffers_[g].gradient;
  slot = context_->gradients->Take(group.gradient_bytes());
  compute().WaitFor(slot->free);
  Attach(*group.gradient(), slot);
  for (GroupParameter& p : group.parameters()) p.grad_written = false;
}

GradientTarget Unit::Target(size_t group, size_t parameter) {
  EnsureGradientBuffer(group);
  GroupParameter& p = groups_[group]->parameters()[parameter];
  return {p.grad, std::exchange(p.grad_written, true)};
}

bool Unit::holds_gradient() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return !group->gradient()->released();
  });
}

// The whole gradient in the type of the reduction, on the compute stream.
Tensor Unit::PrepareWire(size_t g) {
  ShardedGroup& group = *groups_[g];
  EnsureGradientBuffer(g);
  group.ZeroUnwritten();
  if (context_->shard != nullptr) group.CopyInPacked();
  Tensor whole = group.WholeGradient();
  if (group.reduce_dtype() == group.grad_dtype()) return whole;
  Slot*& slot = buffers_[g].wire;
  const int64_t length = whole.num_elements();
  slot = context_->wire->Take(length * ElementBytes(group.reduce_dtype()));
  compute().WaitFor(slot->free);
  Tensor wire = SlotVector(slot, length, group.reduce_dtype());
  if (group.reduce_dtype() == DType::kFloat16) {
    // [Note: float16 sums] Half the division comes before the sum, so that it
    // does not overflow, and half after, so that it does not underflow.
    ops::ScaleInPlace(
        whole,
        1.0 / GradientFactorsFor(static_cast<int64_t>(context_->divisor)).pre);
  }
  ops::Copy(whole, wire);
  return wire;
}

// Where the reduction over the shard group ends: the gradient itself, or,
// where replicas follow, a buffer.
Tensor Unit::ReductionTarget(size_t g, bool* accumulate) {
  ShardedGroup& group = *groups_[g];
  if (context_->replicate == nullptr) {
    Tensor target = group.ShardGradient();
    *accumulate = group.PrepareAccumulation();
    return target;
  }
  *accumulate = false;
  const int64_t length = group.layout().shard_length;
  Slot*& slot = buffers_[g].partial;
  slot = context_->local->Take(length * ElementBytes(group.grad_dtype()));
  context_->shard_stream->WaitFor(slot->free);
  return SlotVector(slot, length, group.grad_dtype());
}

Tensor Unit::LocalFlags() const {
  std::vector<uint8_t> flags;
  for (const auto& group : groups_) {
    if (!group->trainable()) continue;
    for (const GroupParameter& p : group->parameters()) {
      flags.push_back(p.grad_written ? 1 : 0);
    }
  }
  const auto n = static_cast<int64_t>(flags.size());
  return Tensor::FromVector(flags, {n}, context_->device);
}

void Unit::Reduce() {
  std::vector<size_t> trainable;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->trainable()) trainable.push_back(g);
  }
  if (trainable.empty()) return;
  std::vector<Reducing> work;
  for (size_t g : trainable) {
    Reducing r;
    r.group = g;
    r.wire = PrepareWire(g);
    r.target =
        context_->shard != nullptr ? ReductionTarget(g, &r.accumulate) : r.wire;
    if (context_->replicate != nullptr || context_->shard == nullptr) {
      groups_[g]->ShardGradient();
      r.accumulate = groups_[g]->PrepareAccumulation();
    }
    work.push_back(r);
  }
  flags_ = LocalFlags();
  if (context_->shard != nullptr) ReduceOverShards(work);
  if (context_->replicate != nullptr) {
    ReduceOverReplicas(work);
  } else if (context_->shard == nullptr) {
    Merge(work);
    reduced_event_ = compute().Record();
  }
  GiveBackGradients();
  reducing_ = true;
}

// With a factor before the sum, the rest comes after it.
double Unit::DivisorOf(DType reduce_dtype) const {
  if (reduce_dtype != DType::kFloat16) return context_->divisor;
  return GradientFactorsFor(static_cast<int64_t>(context_->divisor)).post;
}

void Unit::ReduceOverShards(const std::vector<Reducing>& work) {
  Stream& stream = *context_->shard_stream;
  stream.WaitFor(compute().Record());
  // One collective divides by one number: groups whose types differ in it
  // travel apart.
  std::map<double, std::vector<ReducePart>> parts;
  for (const Reducing& r : work) {
    const bool last = context_->replicate == nullptr;
    const double divisor =
        last ? DivisorOf(groups_[r.group]->reduce_dtype()) : 1;
    groups_[r.group]->AppendReduceParts(r.wire, r.target, last && r.accumulate,
                                        parts[divisor]);
  }
  Tensor flags = flags_;
  for (const auto& [divisor, list] : parts) {
    OrThrow(context_->shard->ReduceScatter(list, {ReduceOp::kSum, divisor},
                                           std::exchange(flags, Tensor()),
                                           stream, name_));
  }
  reduced_event_ = stream.Record();
}

void Unit::ReduceOverReplicas(const std::vector<Reducing>& work) {
  Stream& stream = *context_->replicate_stream;
  stream.WaitFor(context_->shard != nullptr ? reduced_event_
                                            : compute().Record());
  StreamGuard guard(stream);
  replica_flags_ = ops::Cast(flags_, DType::kInt64);
  std::map<double, std::vector<Tensor>> tensors;
  for (const Reducing& r : work) {
    tensors[DivisorOf(groups_[r.group]->reduce_dtype())].push_back(r.target);
  }
  tensors.begin()->second.push_back(replica_flags_);
  for (const auto& [divisor, list] : tensors) {
    OrThrow(context_->replicate->AllReduce(list, {ReduceOp::kSum, divisor},
                                           stream, name_));
  }
  ops::Copy(replica_flags_, flags_);
  Merge(work);
  reduced_event_ = stream.Record();
}

// Puts the reduced values into the shard's gradient, on the current stream.
void Unit::Merge(const std::vector<Reducing>& work) {
  for (const Reducing& r : work) {
    const Tensor& grad = groups_[r.group]->ShardGradient();
    const Tensor source = r.target.Narrow(0, 0, grad.num_elements());
    if (context_->replicate == nullptr && context_->divisor != 1) {
      ops::ScaleInPlace(source, 1.0 / context_->divisor);
    }
    if (r.accumulate) {
      ops::AddInto(grad, source, 1.0);
    } else {
      ops::Copy(source, grad);
    }
  }
}

void Unit::GiveBackGradients() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Buffers& buffers = buffers_[g];
    if (groups_[g]->gradient()->released()) continue;
    written_.resize(groups_.size());
    written_[g].clear();
    for (const GroupParameter& p : groups_[g]->parameters()) {
      written_[g].push_back(p.grad_written);
    }
    groups_[g]->gradient()->Release();
    context_->gradients->GiveBack(buffers.gradient, reduced_event_);
    if (buffers.wire != nullptr) {
      context_->wire->GiveBack(buffers.wire, reduced_event_);
    }
    if (buffers.partial != nullptr) {
      context_->local->GiveBack(buffers.partial, reduced_event_);
    }
    buffers.gradient = buffers.wire = buffers.partial = nullptr;
  }
}

void Unit::FinishReduce() {
  if (!reducing_) return;
  reducing_ = false;
  compute().WaitFor(reduced_event_);
  bool all_here = true;
  for (const auto& group : written_) {
    for (bool written : group) all_here = all_here && written;
  }
  std::vector<uint8_t> present;
  if (!all_here) present = flags_.ToVector<uint8_t>();  // Blocks.
  size_t at = 0;
  for (auto& group : groups_) {
    if (!group->trainable()) continue;
    for (size_t i = 0; i < group->parameters().size(); ++i, ++at) {
      // [Note: absent gradients] No rank used the parameter: it keeps what it
      // held, and the optimizer does not touch it.
      if (!all_here && present[at] == 0) continue;
      group->parameters()[i].variable.set_grad(group->LocalGradient(i));
    }
  }
  flags_ = Tensor();
  replica_flags_ = Tensor();
}

void Unit::DropGradient() {
  if (reducing_) FinishReduce();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->gradient()->released()) continue;
    groups_[g]->gradient()->Release();
    context_->gradients->GiveBack(buffers_[g].gradient, compute().Record());
    buffers_[g].gradient = nullptr;
  }
}

}  // namespace tessera
