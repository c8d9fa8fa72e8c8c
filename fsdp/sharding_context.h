// What the parts of one sharded module share: ranks, streams, buffers.
#pragma once

#include <memory>

#include "fsdp/buffer_casts.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/device_mesh.h"
#include "fsdp/options.h"
#include "fsdp/slot_pool.h"
#include "runtime/device/stream.h"

namespace tessera {

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
  std::unique_ptr<BufferCasts> buffer_casts;  // Null: buffers keep their type.
  double divisor = 1;                         // Of summed gradients.
  // Whether reductions go on to the replicas; else sums over the shard group
  // wait for one that does.
  bool all_reduce = true;
};

}  // namespace tessera
