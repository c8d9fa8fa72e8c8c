// Parameters of one unit that have everything in common: element types, and
// whether they are trained. They share a layout and buffers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/layout/shard_layout.h"
#include "runtime/autograd/node.h"
#include "runtime/autograd/variable.h"

namespace tessera {

struct GroupParameter {
  std::string name;
  Variable variable;
  Shape shape;             // Of the whole parameter.
  std::vector<int> order;  // Its dims from slowest to fastest in memory.
  std::optional<ShardPiece> piece;  // What this rank keeps; none: nothing.
  Tensor unsharded;                 // The whole, in the gathered buffer.
  Tensor unsharded_full;            // The same in full precision, if wanted.
  Tensor local;  // This rank's part, in the shard; a storage of its own counts
                 // its versions.
  Tensor grad;   // The whole gradient, in the gradient buffer.
  bool grad_written = false;  // Since the gradient buffer was taken.
};

struct GroupOptions {
  std::string unit_name;
  int fsdp_version = 2;
  int world_size = 1;  // Of the shard group.
  int rank = 0;
  DType compute_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  Device device;
  // See [Note: evaluation in full precision].
  bool full_precision_in_eval = false;
};

// Memory and arithmetic of one group; says nothing about when. The master
// values are this rank's shard; the gathered buffer and the gradient buffer are
// storages that a unit attaches to slots and releases.
class ShardedGroup {
 public:
  ShardedGroup(std::vector<GroupParameter> parameters,
               const GroupOptions& options);
  ShardedGroup(const ShardedGroup&) = delete;
  ShardedGroup& operator=(const ShardedGroup&) = delete;

  std::vector<GroupParameter>& parameters() { return parameters_; }
  const std::vector<GroupParameter>& parameters() const { return parameters_; }
  const ShardLayout& layout() const { return layout_; }
  DType master_dtype() const { return master_dtype_; }
  DType compute_dtype() const { return options_.compute_dtype; }
  DType reduce_dtype() const { return options_.reduce_dtype; }
  // Of what is gathered now: the masters', or that of computation.
  DType gathered_dtype() const {
    return full_precision_ ? master_dtype_ : compute_dtype();
  }
  // While nothing is gathered.
  void set_full_precision(bool value) {
    full_precision_ = value && full_gathered_ != nullptr;
  }
  DType grad_dtype() const { return AccumulateDType(master_dtype_); }
  // Whether any parameter of the group requires a gradient now.
  bool trainable() const;
  // The shard is the whole and needs no cast: nothing is ever gathered.
  bool always_whole() const { return gathered_ == shard_.storage(); }

  // Makes room for the master values. [Note: shards in place] Where all ranks
  // see one memory and no cast lies between, `common`
  // holds the masters of all ranks, each rank's at its place in the whole: to
  // gather is then to wait, and no byte moves. Without it the shard is memory
  // of its own. Packed parameters lie at their places too, so that there is no
  // block for them: in_place_length() elements.
  void AllocateShard(std::shared_ptr<Storage> common = nullptr);
  bool in_place() const { return common_ != nullptr; }
  int64_t in_place_length() const;
  const std::shared_ptr<Storage>& common() const { return common_; }
  // The master values as one vector; only when not in place.
  const Tensor& shard() const { return shard_; }
  // Takes this rank's part of the whole value of parameter `index`.
  void SetFromWhole(size_t index, const Tensor& whole);

  const std::shared_ptr<Storage>& gathered() const {
    return full_precision_ ? full_gathered_ : gathered_;
  }
  int64_t gathered_bytes() const;
  const std::shared_ptr<Storage>& gradient() const { return gradient_; }
  int64_t gradient_bytes() const;

  // Takes over what was put in the place of parameters' data: copies tensors of
  // the same shape, type and device, and throws for others, and for all while
  // the parameters are not at rest. Returns whether there was any.
  bool TakeReplacedValues(bool at_rest, bool show_whole);

  // Parameters show their part (at rest), or the whole.
  void ShowLocal();
  void ShowUnsharded();

  // The collective's parts. `source` is the shard, or a cast of it (undefined
  // in place); `whole` the gathered buffer's slot as one vector: to gather is
  // no change of version, so it does not write through gathered(). In memory
  // that all ranks see (`common`), packed parameters go straight to their
  // places.
  void AppendGatherParts(const Tensor& source, const Tensor& whole, bool common,
                         std::vector<GatherPart>& parts) const;
  // `wire` is the gradient buffer, or a cast of it.
  void AppendReduceParts(const Tensor& wire, const Tensor& shard_grad,
                         bool accumulate, std::vector<ReducePart>& parts) const;
  // Between the packed block and the places of the packed parameters.
  void CopyOutPacked(const Tensor& whole) const;
  void CopyInPacked() const;

  // Zeroes what nobody has written in the gradient buffer: parameters without
  // a gradient, padding.
  void ZeroUnwritten() const;
  Tensor WholeGradient() const;    // The gradient buffer as one vector.
  Tensor WholeParameters() const;  // The gathered buffer as one vector.

  // This rank's gradient; made at the first use and then kept.
  const Tensor& ShardGradient();
  // Zeroes the parts of parameters whose grad() is undefined, and says whether
  // any parameter holds a gradient to add to.
  bool PrepareAccumulation();
  Tensor LocalGradient(size_t index) const;

 private:
  const Tensor& Unsharded(const GroupParameter& p) const {
    return full_precision_ ? p.unsharded_full : p.unsharded;
  }
  Tensor LocalView(const Tensor& shard, size_t index) const;
  Tensor WithOwnVersion(const Tensor& part) const;
  Tensor MasterVector(int64_t shard_offset, int64_t length) const;
  int64_t PlaceOf(int64_t shard_offset) const;
  Tensor Unpermuted(const Tensor& stored, const GroupParameter& p) const;

  const GroupOptions options_;
  std::vector<GroupParameter> parameters_;
  const DType master_dtype_;
  ShardLayout layout_;
  std::vector<std::pair<int64_t, int64_t>> gaps_;  // Begin, length.
  Tensor shard_;
  std::shared_ptr<Storage> common_;  // See [Note: shards in place].
  Tensor shard_grad_;
  std::shared_ptr<Storage> gathered_;
  std::shared_ptr<Storage> full_gathered_;  // Null where it would be no other.
  bool full_precision_ = false;
  std::shared_ptr<Storage> gradient_;
};

// A parameter as a member of a group; reads its memory order.
GroupParameter DescribeParameter(const std::string& name,
                                 const Variable& variable);

}  // namespace tessera
