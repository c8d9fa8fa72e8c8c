// One communication group: its parameters, its buffers, and what can be done
// with them. When it is done is the runner's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/sharded_group.h"
#include "fsdp/sharding_context.h"
#include "fsdp/slot_pool.h"
#include "fsdp/unit_gradient.h"
#include "runtime/device/stream.h"

namespace tessera {

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
  // From forward to backward, as the root.
  bool stays_gathered() const { return stays_gathered_; }
  void set_stays_gathered(bool value) { stays_gathered_ = value; }

  // What is gathered is in the masters' types; set while it is sharded.
  bool full_precision() const { return full_precision_; }
  void set_full_precision(bool value);

  // See ShardedGroup.
  void TakeReplacedValues();

  // kSharded -> kGathering: takes slots and issues the all-gather.
  void Gather();
  // kGathering -> kUnsharded: compute waits, parameters show the whole.
  void FinishGather();
  // -> kSharded. The event after which the buffers are free.
  Event Reshard();
  // As Reshard, but keeps this rank's share among the post-forward ranks, from
  // which the next Gather is made.
  Event ReshardPostForward();
  // The next Gather is made from the shards: they may have been written since.
  void DropKept();

  // -> kSharded, after a failed step and while nothing runs: forgets slots,
  // which may be those of half a gather, and gradients that were not reduced.
  void Reset();

  // The way of its gradients, from the first contribution to the shards.
  UnitGradient& gradient() { return gradient_; }

 private:
  struct Buffers {
    Slot* gathered = nullptr;
    Slot* kept = nullptr;  // See ReshardPostForward.
    Slot* cast = nullptr;
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

  const int index_;
  const std::string name_;
  ShardingContext* const context_;
  std::vector<std::unique_ptr<ShardedGroup>> groups_;
  std::vector<Buffers> buffers_;  // Of each group.
  UnitState state_ = UnitState::kSharded;
  bool kept_ = false;
  bool stays_gathered_ = false;
  bool full_precision_ = false;
  Event gathered_event_;
  UnitGradient gradient_;
};

}  // namespace tessera
