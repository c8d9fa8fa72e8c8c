// Norms of all gradients together, as one process would find them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/reduce.h"

namespace tessera {

// [Note: norms] Sums of squares and magnitudes are exact until they are rounded
// once at the end, so neither the layout of the shards nor the number of ranks
// changes a bit of the norm. Replicas hold equal gradients: only one shard
// group counts. Parameters kept out of sharding are whole on every rank, and
// counted by the first. Where their gradients are not averaged, replicas find
// different norms: all take the largest, or they would clip what they share
// differently.
double FullyShardedModule::GradNorm(double norm_type) {
  CheckIdle("GradNorm");
  const double norm = NormOfReplica(norm_type);
  if (context_->options.reduce_ignored_gradients ||
      context_->replicate == nullptr) {
    return norm;
  }
  const Tensor largest =
      Tensor::FromVector<double>({norm}, {1}, context_->device);
  AllReduce(*context_->replicate, largest, ReduceOp::kMax);
  return largest.Item();
}

double FullyShardedModule::NormOfReplica(double norm_type) {
  std::vector<Tensor> grads;
  for (const ShardedParameter& p : parameters_) {
    const bool mine =
        p.sharded || context_->shard == nullptr || context_->shard_rank == 0;
    if (!p.variable.grad().defined() || !mine) continue;
    grads.push_back(ops::Contiguous(p.variable.grad()).Flatten());
  }
  if (norm_type == 1.0 || norm_type == 2.0) return SumNorm(grads, norm_type);
  if (std::isinf(norm_type) && norm_type > 0) return MaxNorm(grads);
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "GradNorm: wanted norm type 1, 2 or infinity, got ", norm_type)));
}

double FullyShardedModule::SumNorm(const std::vector<Tensor>& grads,
                                   double norm_type) {
  const ops::ExactSum sum = ops::NewExactSum(context_->device);
  for (const Tensor& grad : grads) {
    if (grad.num_elements() == 0) continue;
    if (norm_type == 2.0) {
      ops::AddSquares(grad, sum);
    } else {
      ops::AddMagnitudes(grad, sum);
    }
  }
  AllReduceOverShards(sum.words, ReduceOp::kSum);
  return norm_type == 2.0 ? ops::ExactSquareRoot(sum).Item()
                          : ops::ToDouble(sum);
}

double FullyShardedModule::MaxNorm(const std::vector<Tensor>& grads) {
  double largest = 0;
  for (const Tensor& grad : grads) {
    if (grad.num_elements() == 0) continue;
    const double value = ops::MaxMagnitude(grad).Item();
    largest = std::isnan(value) ? value : std::max(largest, value);
  }
  const Tensor value =
      Tensor::FromVector<double>({largest}, {1}, context_->device);
  AllReduceOverShards(value, ReduceOp::kMax);
  return value.Item();
}

void FullyShardedModule::AllReduceOverShards(const Tensor& tensor,
                                             ReduceOp op) {
  if (context_->shard != nullptr) AllReduce(*context_->shard, tensor, op);
}

void FullyShardedModule::AllReduce(Communicator& ranks, const Tensor& tensor,
                                   ReduceOp op) {
  Stream& stream = *context_->shard_stream;
  Stream& compute = ComputeStream(context_->device);
  stream.WaitFor(compute.Record());
  const Tensor tensors[] = {tensor};
  OrThrow(ranks.AllReduce(tensors, {op, 1.0}, stream, "norm of gradients"));
  compute.WaitFor(stream.Record());
}

double FullyShardedModule::ClipGradNorm(double max_norm, double norm_type) {
  const double norm = GradNorm(norm_type);
  const double coefficient = ClipCoefficient(norm, max_norm);
  if (coefficient == 1.0) return norm;
  for (const ShardedParameter& p : parameters_) {
    if (!p.variable.grad().defined()) continue;
    ops::ScaleInPlace(p.variable.grad(), coefficient);
  }
  return norm;
}

double ClipCoefficient(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera
