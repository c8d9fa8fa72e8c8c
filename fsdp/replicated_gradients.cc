#include "fsdp/replicated_gradients.h"

#include <cstdint>

#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

void ReduceReplicatedGradients(std::vector<Variable>& parameters,
                               const ShardingContext& context) {
  Communicator& world = *context.mesh->world();
  std::vector<Tensor> grads;
  std::vector<int64_t> present;
  for (const Variable& p : parameters) {
    if (!p.requires_grad()) continue;
    present.push_back(p.grad().defined() ? 1 : 0);
    grads.push_back(p.grad().defined()
                        ? p.grad()
                        : ops::Zeros(p.shape(), {AccumulateDType(p.dtype()),
                                                 context.device}));
  }
  if (grads.empty() || world.world_size() == 1) return;
  std::vector<Tensor> flat;
  flat.reserve(grads.size() + 1);
  for (const Tensor& grad : grads) flat.push_back(grad.Flatten());
  const Tensor flags = Tensor::FromVector(
      present, {static_cast<int64_t>(present.size())}, context.device);
  flat.push_back(flags);
  Stream& stream = *context.shard_stream;
  Stream& compute = ComputeStream(context.device);
  stream.WaitFor(compute.Record());
  OrThrow(world.AllReduce(flat, {ReduceOp::kSum, context.divisor}, stream,
                          "ignored parameters"));
  compute.WaitFor(stream.Record());
  const std::vector<int64_t> anywhere = flags.ToVector<int64_t>();
  size_t at = 0;
  for (Variable& p : parameters) {
    if (!p.requires_grad()) continue;
    if (anywhere[at] > 0) p.set_grad(grads[at]);
    ++at;
  }
}

}  // namespace tessera
