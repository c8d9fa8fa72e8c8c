// The gradients of one unit: where they are born, and how they are reduced.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/sharded_group.h"
#include "fsdp/sharding_context.h"
#include "fsdp/slot_pool.h"
#include "runtime/autograd/node.h"
#include "runtime/device/stream.h"

namespace tessera {

// Contributions accumulate in the unit's gradient buffer; a reduction sums it
// over the ranks into the gradients of the shards. Between the two there may be
// several backwards. Calls come from one thread, the same calls in the same
// order on every rank; only Finish may block, and only where a parameter got no
// gradient on this rank.
class UnitGradient {
 public:
  // `groups` are all of the unit's, and outlive this.
  UnitGradient(std::string unit_name,
               const std::vector<std::unique_ptr<ShardedGroup>>& groups,
               ShardingContext* context);
  UnitGradient(const UnitGradient&) = delete;
  UnitGradient& operator=(const UnitGradient&) = delete;

  // The place for the next contribution to the gradient of a parameter.
  GradientTarget Target(size_t group, size_t parameter);
  // Makes room for contributions that may come, in slots that all ranks take
  // alike.
  void TakeBuffers();
  // Whether there is room for contributions that no reduction has taken.
  bool held() const;
  // Issues the reduction of what has been accumulated, and gives the gradient
  // buffer back. Where the context puts off the all-reduce, the sum over the
  // shard group is kept, and joins the next one.
  void Reduce();
  bool reducing() const { return reducing_; }
  // Compute waits for the reduction; parameters get their gradients.
  void Finish();
  // Forgets gradients that were not reduced, after a failed step.
  void Drop();
  // The same while nothing runs, from any state: forgets slots too.
  void Reset();

 private:
  struct Buffers {
    Slot* gradient = nullptr;
    Slot* wire = nullptr;
    Slot* partial = nullptr;
  };

  // A group's way through a reduction.
  struct Reducing {
    size_t group = 0;
    Tensor wire;              // The whole gradient, as it travels.
    Tensor target;            // Where the sum over the shard group ends.
    bool accumulate = false;  // Onto the gradient that the shard holds.
  };

  Stream& compute() const { return ComputeStream(context_->device); }
  void EnsureBuffer(size_t g);
  Tensor PrepareWire(size_t g);
  Tensor ReductionTarget(size_t g, const Tensor& wire);
  double DivisorOf(DType reduce_dtype) const;
  void ReduceOverShards(const std::vector<Reducing>& work);
  void ReduceOverReplicas(const std::vector<Reducing>& work);
  void Merge(const std::vector<Reducing>& work);
  bool PutsOff() const;
  void NoteWritten();
  void GiveBackBuffers();
  Tensor LocalFlags() const;
  std::string What() const;
  Tensor ShownGradient(const ShardedGroup& group, size_t i) const;

  const std::string unit_name_;
  std::vector<ShardedGroup*> groups_;
  ShardingContext* const context_;
  std::vector<Buffers> buffers_;  // Of each group.
  bool reducing_ = false;
  Event reduced_event_;
  Tensor flags_;  // Of each parameter of a trainable group: has a gradient.
  Tensor replica_flags_;
  // The same, on this rank, of what the last reduction took and, as long as an
  // all-reduce is put off, of those before it.
  std::vector<std::vector<bool>> written_;
  bool put_off_ = false;  // Sums over the shard group wait in `partial`.
};

}  // namespace tessera
