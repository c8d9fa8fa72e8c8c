#include "fsdp/replicated_gradients.h"

#include <cstdint>
#include <utility>

#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

ReplicatedGradients::ReplicatedGradients(std::vector<Variable> parameters,
                                         const ShardingContext* context)
    : context_(context) {
  for (Variable& p : parameters) {
    parameters_.push_back({.variable = std::move(p)});
  }
}

void ReplicatedGradients::BeginBackward() {
  for (Replicated& p : parameters_) {
    const Tensor& grad = p.variable.grad();
    if (!grad.defined()) {  // Cleared by the caller.
      p.reduced = Tensor();
      p.aside = false;
    } else if (p.reduced.defined() && !p.aside &&
               grad.storage() == p.reduced.storage()) {
      p.variable.ZeroGrad();
      p.aside = true;
    } else if (!p.aside) {
      p.reduced = Tensor();  // Another one, set by the caller.
    }
  }
}

// Zeros where this rank has none; `present` gets whether it has one.
std::vector<Tensor> ReplicatedGradients::Contributions(
    std::vector<int64_t>& present) const {
  std::vector<Tensor> grads;
  for (const Replicated& p : parameters_) {
    if (!p.variable.requires_grad()) continue;
    const Tensor& grad = p.variable.grad();
    present.push_back(grad.defined() ? 1 : 0);
    grads.push_back(grad.defined()
                        ? grad
                        : ops::Zeros(p.variable.shape(),
                                     {AccumulateDType(p.variable.dtype()),
                                      context_->device}));
  }
  return grads;
}

void ReplicatedGradients::SumOverRanks(const std::vector<Tensor>& grads,
                                       std::vector<int64_t>& present) const {
  Communicator& world = *context_->mesh->world();
  if (world.world_size() == 1) {
    if (context_->divisor == 1) return;
    for (const Tensor& grad : grads) {
      ops::ScaleInPlace(grad, 1.0 / context_->divisor);
    }
    return;
  }
  std::vector<Tensor> flat;
  flat.reserve(grads.size() + 1);
  for (const Tensor& grad : grads) flat.push_back(grad.Flatten());
  const Tensor flags = Tensor::FromVector(
      present, {static_cast<int64_t>(present.size())}, context_->device);
  flat.push_back(flags);
  Stream& stream = *context_->shard_stream;
  Stream& compute = ComputeStream(context_->device);
  stream.WaitFor(compute.Record());
  OrThrow(world.AllReduce(flat, {ReduceOp::kSum, context_->divisor}, stream,
                          "ignored parameters"));
  compute.WaitFor(stream.Record());
  present = flags.ToVector<int64_t>();
}

void ReplicatedGradients::Reduce() {
  std::vector<int64_t> present;
  const std::vector<Tensor> grads = Contributions(present);
  if (grads.empty()) return;
  SumOverRanks(grads, present);
  size_t at = 0;
  for (Replicated& p : parameters_) {
    if (!p.variable.requires_grad()) continue;
    const bool anywhere = present[at] > 0;
    const Tensor& mean = grads[at++];
    if (p.aside) {
      if (anywhere) ops::AddInto(p.reduced, mean, 1.0);
    } else if (anywhere) {
      p.reduced = mean;
    } else {
      continue;
    }
    p.variable.set_grad(p.reduced);
    p.aside = false;
  }
}

void ReplicatedGradients::Keep() {
  for (Replicated& p : parameters_) {
    if (!p.aside || p.variable.grad().defined()) continue;
    p.variable.set_grad(p.reduced);
    p.aside = false;
  }
}

void ReplicatedGradients::Drop() {
  for (Replicated& p : parameters_) {
    if (p.aside) p.variable.set_grad(p.reduced);
    p.aside = false;
  }
}

}  // namespace tessera
