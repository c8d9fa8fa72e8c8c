#include "fsdp/unit_gradient.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/gradient_factors.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

UnitGradient::UnitGradient(
    std::string unit_name,
    const std::vector<std::unique_ptr<ShardedGroup>>& groups,
    ShardingContext* context)
    : unit_name_(std::move(unit_name)),
      context_(context),
      buffers_(groups.size()),
      written_(groups.size()) {
  for (const auto& group : groups) groups_.push_back(group.get());
}

void UnitGradient::EnsureBuffer(size_t g) {
  ShardedGroup& group = *groups_[g];
  if (!group.gradient()->released()) return;
  Slot*& slot = buffers_[g].gradient;
  slot = context_->gradients->Take(group.gradient_bytes());
  compute().WaitFor(slot->free);
  slot->AttachTo(*group.gradient());
  for (GroupParameter& p : group.parameters()) p.grad_written = false;
}

GradientTarget UnitGradient::Target(size_t group, size_t parameter) {
  EnsureBuffer(group);
  GroupParameter& p = groups_[group]->parameters()[parameter];
  return {p.grad, std::exchange(p.grad_written, true)};
}

void UnitGradient::TakeBuffers() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->trainable()) EnsureBuffer(g);
  }
}

bool UnitGradient::held() const {
  if (put_off_ && !PutsOff()) return true;
  return std::any_of(
      groups_.begin(), groups_.end(),
      [](const ShardedGroup* group) { return !group->gradient()->released(); });
}

// The whole gradient in the type of the reduction, on the compute stream.
Tensor UnitGradient::PrepareWire(size_t g) {
  ShardedGroup& group = *groups_[g];
  EnsureBuffer(g);
  group.ZeroUnwritten();
  if (context_->shard != nullptr) group.CopyInPacked();
  Tensor whole = group.WholeGradient();
  if (group.reduce_dtype() == group.grad_dtype()) return whole;
  Slot*& slot = buffers_[g].wire;
  const int64_t length = whole.num_elements();
  slot = context_->wire->Take(length * ElementBytes(group.reduce_dtype()));
  compute().WaitFor(slot->free);
  Tensor wire = slot->Vector(length, group.reduce_dtype());
  if (group.reduce_dtype() == DType::kFloat16) {
    // [Note: float16 sums] Half the division comes before the sum, so that it
    // does not overflow, and half after, so that it does not underflow.
    ops::ScaleInPlace(whole, 1.0 / GradientFactorsFor(context_->divisor).pre);
  }
  ops::Copy(whole, wire);
  return wire;
}

// Where the reduction over the shard group ends: the gradient itself, or,
// where replicas follow, a buffer.
Tensor UnitGradient::ReductionTarget(size_t g, const Tensor& wire) {
  ShardedGroup& group = *groups_[g];
  if (context_->shard == nullptr) return wire;
  if (context_->replicate == nullptr) return group.ShardGradient();
  const int64_t length = group.layout().shard_length;
  Slot*& slot = buffers_[g].partial;
  if (slot == nullptr) {
    slot = context_->local->Take(length * ElementBytes(group.grad_dtype()));
    context_->shard_stream->WaitFor(slot->free);
  }
  return slot->Vector(length, group.grad_dtype());
}

// An all-reduce that was put off is one of all that it is put off for.
void UnitGradient::NoteWritten() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g]->trainable()) continue;
    const auto& parameters = groups_[g]->parameters();
    written_[g].resize(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      written_[g][i] =
          parameters[i].grad_written || (put_off_ && written_[g][i]);
    }
  }
}

Tensor UnitGradient::LocalFlags() const {
  std::vector<uint8_t> flags;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g]->trainable()) continue;
    flags.insert(flags.end(), written_[g].begin(), written_[g].end());
  }
  const auto n = static_cast<int64_t>(flags.size());
  return Tensor::FromVector(flags, {n}, context_->device);
}

bool UnitGradient::PutsOff() const {
  return !context_->all_reduce && context_->shard != nullptr;
}

void UnitGradient::Reduce() {
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
    r.target = ReductionTarget(g, r.wire);
    if (!PutsOff()) {
      groups_[g]->ShardGradient();
      r.accumulate = groups_[g]->PrepareAccumulation();
    }
    work.push_back(r);
  }
  NoteWritten();
  flags_ = LocalFlags();
  if (context_->shard != nullptr) ReduceOverShards(work);
  if (PutsOff()) {
    put_off_ = true;
    GiveBackBuffers();
    return;
  }
  if (context_->replicate != nullptr) {
    ReduceOverReplicas(work);
  } else if (context_->shard == nullptr) {
    Merge(work);
    reduced_event_ = compute().Record();
  }
  put_off_ = false;
  GiveBackBuffers();
  reducing_ = true;
}

// With a factor before the sum, the rest comes after it.
double UnitGradient::DivisorOf(DType reduce_dtype) const {
  if (reduce_dtype != DType::kFloat16) return context_->divisor;
  return GradientFactorsFor(context_->divisor).post;
}

// Ranks compare it. The divisor of a collective is not all of the divisor where
// replicas follow, or a part comes before the sum.
std::string UnitGradient::What() const {
  std::string text = unit_name_;
  if (context_->divisor != context_->mesh->world()->world_size()) {
    absl::StrAppend(&text, ", gradients divided by ", context_->divisor);
  }
  if (PutsOff()) absl::StrAppend(&text, ", all-reduce put off");
  return text;
}

void UnitGradient::ReduceOverShards(const std::vector<Reducing>& work) {
  Stream& stream = *context_->shard_stream;
  stream.WaitFor(compute().Record());
  // One collective divides by one number: groups whose types differ in it
  // travel apart.
  std::map<double, std::vector<ReducePart>> parts;
  for (const Reducing& r : work) {
    const bool last = context_->replicate == nullptr;
    const double divisor =
        last ? DivisorOf(groups_[r.group]->reduce_dtype()) : 1;
    groups_[r.group]->AppendReduceParts(
        r.wire, r.target, last ? r.accumulate : put_off_, parts[divisor]);
  }
  Tensor flags = flags_;
  for (const auto& [divisor, list] : parts) {
    OrThrow(context_->shard->ReduceScatter(list, {ReduceOp::kSum, divisor},
                                           std::exchange(flags, Tensor()),
                                           stream, What()));
  }
  reduced_event_ = stream.Record();
}

void UnitGradient::ReduceOverReplicas(const std::vector<Reducing>& work) {
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
                                           stream, What()));
  }
  ops::Copy(replica_flags_, flags_);
  Merge(work);
  reduced_event_ = stream.Record();
}

// Puts the reduced values into the shard's gradient, on the current stream.
void UnitGradient::Merge(const std::vector<Reducing>& work) {
  for (const Reducing& r : work) {
    const Tensor& grad = groups_[r.group]->ShardGradient();
    const Tensor source = r.target.Narrow(0, 0, grad.num_elements());
    const double divisor = DivisorOf(groups_[r.group]->reduce_dtype());
    if (context_->replicate == nullptr && divisor != 1) {
      ops::ScaleInPlace(source, 1.0 / divisor);
    }
    if (r.accumulate) {
      ops::AddInto(grad, source, 1.0);
    } else {
      ops::Copy(source, grad);
    }
  }
}

// Behind the last collective that reads them.
void UnitGradient::GiveBackBuffers() {
  Stream& stream = context_->replicate != nullptr && !PutsOff()
                       ? *context_->replicate_stream
                   : context_->shard != nullptr ? *context_->shard_stream
                                                : compute();
  for (size_t g = 0; g < groups_.size(); ++g) {
    Buffers& buffers = buffers_[g];
    if (groups_[g]->gradient()->released()) continue;
    groups_[g]->gradient()->Release();
    context_->gradients->GiveBack(buffers.gradient, stream);
    context_->wire->GiveBack(buffers.wire, stream);
    if (!put_off_) context_->local->GiveBack(buffers.partial, stream);
  }
}

// With keep_low_precision_grads a copy in the compute type; the sum itself
// stays as it is, and the next backward adds to it.
Tensor UnitGradient::ShownGradient(const ShardedGroup& group, size_t i) const {
  Tensor sum = group.LocalGradient(i);
  if (!context_->options.mixed_precision.keep_low_precision_grads) return sum;
  MemoryCategoryGuard guard(MemoryCategory::kGradient);
  return ops::Cast(sum, group.compute_dtype());
}

void UnitGradient::Finish() {
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
  for (ShardedGroup* group : groups_) {
    if (!group->trainable()) continue;
    for (size_t i = 0; i < group->parameters().size(); ++i, ++at) {
      // [Note: absent gradients] No rank used the parameter: it keeps what it
      // held, and the optimizer does not touch it.
      if (!all_here && present[at] == 0) continue;
      group->parameters()[i].variable.set_grad(ShownGradient(*group, i));
    }
  }
  flags_ = Tensor();
  replica_flags_ = Tensor();
}

void UnitGradient::Drop() {
  if (reducing_) compute().WaitFor(reduced_event_);
  reducing_ = put_off_ = false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    context_->local->GiveBack(buffers_[g].partial, *context_->shard_stream);
    if (groups_[g]->gradient()->released()) continue;
    groups_[g]->gradient()->Release();
    context_->gradients->GiveBack(buffers_[g].gradient, compute());
  }
}

void UnitGradient::Reset() {
  for (ShardedGroup* group : groups_) {
    if (!group->gradient()->released()) group->gradient()->Release();
  }
  buffers_.assign(groups_.size(), Buffers());
  reducing_ = put_off_ = false;
  reduced_event_ = Event();
  flags_ = Tensor();
  replica_flags_ = Tensor();
}

}  // namespace tessera
