#include "fsdp/unit.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/mixed_precision.h"
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
  options.full_precision_in_eval = context.mode.full_precision_in_eval;
  options.compute_dtype = ComputeDType(mixed, master);
  options.reduce_dtype =
      ReduceDType(mixed, master, context.options.fsdp_version);
  return options;
}

std::vector<std::unique_ptr<ShardedGroup>> MakeGroups(
    std::vector<GroupParameter> parameters, const std::string& unit_name,
    const ShardingContext& context) {
  std::vector<std::unique_ptr<ShardedGroup>> groups;
  for (auto& members : SplitIntoGroups(std::move(parameters))) {
    const DType master = members[0].variable.dtype();
    groups.push_back(std::make_unique<ShardedGroup>(
        std::move(members), OptionsOfGroup(context, unit_name, master)));
  }
  return groups;
}

}  // namespace

Unit::Unit(int index, std::string name, std::vector<GroupParameter> parameters,
           ShardingContext* context)
    : index_(index),
      name_(std::move(name)),
      context_(context),
      groups_(MakeGroups(std::move(parameters), name_, *context)),
      buffers_(groups_.size()),
      gradient_(name_, groups_, context) {}

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
  if (group.in_place()) {
    return Tensor::View(group.common(), 0, {group.in_place_length()},
                        group.gathered_dtype());
  }
  return Tensor::View(buffers_[g].gathered->memory, 0,
                      {group.layout().unsharded_length},
                      group.gathered_dtype());
}

// Whether all ranks see one gathered buffer.
bool Unit::IsCommon(size_t g) const {
  return groups_[g]->in_place() || buffers_[g].gathered->common;
}

// The shard in the type of the gathered buffer, on the shard's stream.
Tensor Unit::CastShard(size_t g) {
  ShardedGroup& group = *groups_[g];
  if (group.gathered_dtype() == group.master_dtype()) return group.shard();
  const int64_t length = group.layout().shard_length;
  Slot*& slot = buffers_[g].cast;
  slot = context_->local->Take(length * ElementBytes(group.compute_dtype()));
  context_->shard_stream->WaitFor(slot->free);
  Tensor cast = slot->Vector(length, group.compute_dtype());
  ops::Copy(group.shard(), cast);
  return cast;
}

void Unit::set_full_precision(bool value) {
  if (full_precision_ == value) return;
  TESSERA_CHECK(state_ == UnitState::kSharded);
  full_precision_ = value;
  for (auto& group : groups_) group->set_full_precision(value);
}

void Unit::TakeReplacedValues() {
  bool any = false;
  for (auto& group : groups_) {
    any = group->TakeReplacedValues(state_ == UnitState::kSharded,
                                    state_ == UnitState::kUnsharded) ||
          any;
  }
  if (any) context_->shard_stream->WaitFor(compute().Record());
}

void Unit::Gather() {
  TESSERA_CHECK(state_ == UnitState::kSharded);
  TakeReplacedValues();
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
    slot->AttachTo(*group.gathered());
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
    context_->local->GiveBack(buffers_[g].cast, stream);
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
  for (const Buffers& buffers : buffers_) {
    if (buffers.gathered != nullptr) buffers.gathered->Poison(compute());
  }
  Event free = compute().Record();
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->ShowLocal();
    if (groups_[g]->always_whole()) continue;
    // A gather that threw has not attached it.
    if (!groups_[g]->gathered()->released()) groups_[g]->gathered()->Release();
    if (groups_[g]->in_place() || buffers_[g].gathered == nullptr) continue;
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

void Unit::DropKept() {
  if (!kept_) return;
  for (Buffers& buffers : buffers_) {
    context_->local->GiveBack(buffers.kept, compute());
  }
  kept_ = false;
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
    context_->local->GiveBack(buffers_[g].kept, stream);
  }
  gathered_event_ = stream.Record();
  kept_ = false;
}

void Unit::Reset() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->ShowLocal();
    if (groups_[g]->always_whole()) continue;
    if (!groups_[g]->gathered()->released()) groups_[g]->gathered()->Release();
  }
  buffers_.assign(groups_.size(), Buffers());
  kept_ = false;
  gathered_event_ = Event();
  state_ = UnitState::kSharded;
  gradient_.Reset();
}

}  // namespace tessera
