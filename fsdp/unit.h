// One communication group: its parameters, its buffers, and what can be done
// with them. When it is done is the runner's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/device_mesh.h"
#include "fsdp/options.h"
#include "fsdp/parameter_group.h"
#include "fsdp/slot_pool.h"
#include "runtime/device/stream.h"

namespace tessera {

// What all units of a sharded module share.
struct ShardingContext {
  Device device;
  std::shared_ptr<DeviceMesh> mesh;
  FullyShardOptions options;
  ShardingMode mode;
  int shard_size = 1;
  int shard_rank = 0;
  Communicator* shard = nullptr;      // Null where shard_size is 1.
  Communicator* replicate = nullptr;  // Null where there is one copy.
  // Of the ranks that keep the parameters between forward and backward, where
  // those are fewer than the shard group.
  std::shared_ptr<Communicator> post_forward;
  // Gathers and reductions of one communicator run in one order.
  std::unique_ptr<Stream> shard_stream;
  std::unique_ptr<Stream> replicate_stream;
  // See [Note: shards in place]: wherever no cast forbids it.
  bool shards_in_place = false;
  std::unique_ptr<SlotPool> gathered;   // Unsharded parameters.
  std::unique_ptr<SlotPool> gradients;  // Unsharded gradients.
  std::unique_ptr<SlotPool> wire;       // Gradients cast for the reduction.
  std::unique_ptr<SlotPool> local;      // Of this rank alone.
  double divisor = 1;                   // Of summed gradients.
};

enum class UnitState {
  kSharded,    // At rest: parameters show this rank's part.
  kGathering,  // The all-gather is issued.
  kUnsharded,  // Parameters show the whole.
};

// Calls come from one thread, the same calls in the same order on every rank.
// Nothing blocks but the making of slots in the first steps.
class Unit {
 public:
  Unit(int index, std::string name, std::vector<GroupParameter> parameters,
       ShardingContext* context);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  UnitState state() const { return state_; }
  std::vector<std::unique_ptr<ShardedGroup>>& groups() { return groups_; }
  const std::vector<std::unique_ptr<ShardedGroup>>& groups() const {
    return groups_;
  }
  bool trainable() const;
  bool has_frozen() const;
  // Nothing is ever gathered or released.
  bool always_whole() const;

  // kSharded -> kGathering: takes slots and issues the all-gather.
  void Gather();
  // kGathering -> kUnsharded: compute waits, parameters show the whole.
  void FinishGather();
  // -> kSharded. The event after which the buffers are free.
  Event Reshard();
  // As Reshard, but keeps this rank's share among the post-forward ranks, from
  // which the next Gather is made.
  Event ReshardPostForward();

  // The place for the next contribution to the gradient of a parameter.
  GradientTarget Target(size_t group, size_t parameter);
  bool holds_gradient() const;
  // Issues the reduction of what has been accumulated, and gives the gradient
  // buffer back.
  void Reduce();
  bool reducing() const { return reducing_; }
  // Compute waits for the reduction; parameters get their gradients.
  void FinishReduce();
  // Forgets gradients that were not reduced, after a failed step.
  void DropGradient();

 private:
  struct Buffers {
    Slot* gathered = nullptr;
    Slot* kept = nullptr;  // See ReshardPostForward.
    Slot* gradient = nullptr;
    Slot* wire = nullptr;
    Slot* partial = nullptr;
    Slot* cast = nullptr;
  };

  // A group's way through a reduction.
  struct Reducing {
    size_t group = 0;
    Tensor wire;              // The whole gradient, as it travels.
    Tensor target;            // Where the sum over the shard group ends.
    bool accumulate = false;  // Onto the gradient that the shard holds.
  };

  Stream& compute() const { return ComputeStream(context_->device); }
  int SlotKey() const;
  Tensor SlotWhole(size_t g) const;
  bool IsCommon(size_t g) const;
  Tensor CastShard(size_t g);
  void AttachGathered();
  void GatherFromShards();
  void GatherFromKept();
  std::vector<Tensor> KeptParts(size_t g) const;
  void EnsureGradientBuffer(size_t g);
  Tensor PrepareWire(size_t g);
  Tensor ReductionTarget(size_t g, bool* accumulate);
  double DivisorOf(DType reduce_dtype) const;
  void ReduceOverShards(const std::vector<Reducing>& work);
  void ReduceOverReplicas(const std::vector<Reducing>& work);
  void Merge(const std::vector<Reducing>& work);
  void GiveBackGradients();
  Tensor LocalFlags() const;

  const int index_;
  const std::string name_;
  ShardingContext* const context_;
  std::vector<std::unique_ptr<ShardedGroup>> groups_;
  std::vector<Buffers> buffers_;  // Of each group.
  UnitState state_ = UnitState::kSharded;
  bool kept_ = false;
  Event gathered_event_;
  bool reducing_ = false;
  Event reduced_event_;
  Tensor flags_;  // Of each parameter of a trainable group: has a gradient.
  Tensor replica_flags_;
  std::vector<std::vector<bool>> written_;  // The same, on this rank.
};

}  // namespace tessera
