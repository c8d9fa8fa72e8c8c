// The ranks as a grid: replicas of groups that share one sharded model.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// Sizes of the axes dp_replicate x dp_shard. Ranks of one shard group are
// consecutive: rank = replicate_index * shard + shard_index.
struct MeshShape {
  int replicate = 1;
  int shard = -1;  // -1, on one axis: what is left of the world.
  // A mesh with a replicate axis, be it of size 1; hybrid strategies want it.
  bool has_replicate_axis = false;

  std::string ToString() const;  // "2x4", or "8" without a replicate axis
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

// "8" or "-1" (shard only), "2x4", "2x-1", or by name in any order:
// "dp_replicate=2,dp_shard=4". Sizes that are left out are -1 for dp_shard.
absl::StatusOr<MeshShape> ParseMeshShape(const std::string& text);

// With the -1 filled in. Errors name sizes and world size.
absl::StatusOr<MeshShape> ResolveMeshShape(const MeshShape& shape,
                                           int world_size);

// Owns the communicators of this rank's row and column. Ranks without a
// replicate axis (or with one of size 1) have no replicate communicator.
class DeviceMesh {
 public:
  // Every rank of `world` calls it with the same shape; a difference is an
  // error on all of them.
  static absl::StatusOr<std::shared_ptr<DeviceMesh>> Create(
      const std::shared_ptr<Communicator>& world, const MeshShape& shape = {});

  const MeshShape& shape() const { return shape_; }
  const std::shared_ptr<Communicator>& world() const { return world_; }
  // The ranks that each hold a part of one copy of the parameters.
  const std::shared_ptr<Communicator>& shard() const { return shard_; }
  // The ranks that hold the same part; null when there is one copy.
  const std::shared_ptr<Communicator>& replicate() const { return replicate_; }

  int shard_index() const { return world_->rank() % shape_.shard; }
  int replicate_index() const { return world_->rank() / shape_.shard; }

 private:
  DeviceMesh() = default;

  MeshShape shape_;
  std::shared_ptr<Communicator> world_;
  std::shared_ptr<Communicator> shard_;
  std::shared_ptr<Communicator> replicate_;
};

}  // namespace tessera
