#include "fsdp/sharded_group.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// Where a parameter starts in the buffers, so that vector code meets aligned
// data and ranks never share a cache line.
constexpr int64_t kAlignmentBytes = 128;
// Pieces that are no multiple of it travel packed.
constexpr int64_t kInPlaceBytes = 16;

Shape StoredShape(const GroupParameter& p) {
  Shape shape;
  for (int d : p.order) shape.Append(p.shape.dim(d));
  return shape;
}

std::vector<LayoutParameter> LayoutParameters(
    const std::vector<GroupParameter>& parameters) {
  std::vector<LayoutParameter> result;
  result.reserve(parameters.size());
  for (const auto& p : parameters) result.push_back({p.name, StoredShape(p)});
  return result;
}

ShardLayout MakeLayout(const std::vector<GroupParameter>& parameters,
                       const GroupOptions& options) {
  LayoutOptions layout;
  layout.world_size = options.world_size;
  const int64_t bytes = ElementBytes(options.compute_dtype);
  layout.alignment = kAlignmentBytes / bytes;
  layout.in_place_multiple = std::max<int64_t>(kInPlaceBytes / bytes, 1);
  // One rank keeps everything, so nothing needs packing.
  return options.fsdp_version == 1 || options.world_size == 1
             ? MakeFlatLayout(LayoutParameters(parameters), layout)
             : MakePerParameterLayout(LayoutParameters(parameters), layout);
}

// What lies in no parameter's own elements, of the first `length` elements.
std::vector<std::pair<int64_t, int64_t>> Gaps(const ShardLayout& layout) {
  std::vector<std::pair<int64_t, int64_t>> used;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    used.emplace_back(layout.unsharded_offsets[i],
                      layout.parameters[i].shape.num_elements());
  }
  std::sort(used.begin(), used.end());
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t at = 0;
  for (const auto& [begin, length] : used) {
    if (begin > at) gaps.emplace_back(at, begin - at);
    at = std::max(at, begin + length);
  }
  if (layout.unsharded_length > at) {
    gaps.emplace_back(at, layout.unsharded_length - at);
  }
  return gaps;
}

std::vector<int> Inverse(const std::vector<int>& order) {
  std::vector<int> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = i;
  return inverse;
}

Tensor Vector(const std::shared_ptr<Storage>& storage, int64_t begin,
              int64_t length, DType dtype) {
  return Tensor::View(storage, begin, {length}, dtype);
}

}  // namespace

GroupParameter DescribeParameter(const std::string& name,
                                 const Variable& variable) {
  GroupParameter p;
  p.name = name;
  p.variable = variable;
  p.shape = variable.shape();
  p.order.resize(p.shape.num_dims());
  std::iota(p.order.begin(), p.order.end(), 0);
  const Tensor& data = variable.data();
  if (data.IsContiguous()) return p;
  std::stable_sort(p.order.begin(), p.order.end(), [&](int a, int b) {
    return data.strides()[a] > data.strides()[b];
  });
  // Only a dense order of memory is kept; anything else becomes row-major.
  if (!data.Permute(p.order).IsContiguous()) {
    std::iota(p.order.begin(), p.order.end(), 0);
  }
  return p;
}

ShardedGroup::ShardedGroup(std::vector<GroupParameter> parameters,
                           const GroupOptions& options)
    : options_(options),
      parameters_(std::move(parameters)),
      master_dtype_(parameters_[0].variable.dtype()),
      layout_(MakeLayout(parameters_, options_)),
      gaps_(Gaps(layout_)) {
  gathered_ = Storage::Deferred(
      options_.device, layout_.unsharded_length * ElementBytes(compute_dtype()),
      absl::StrCat("parameters of unit ", options_.unit_name));
  if (options_.full_precision_in_eval && compute_dtype() != master_dtype_) {
    full_gathered_ = Storage::Deferred(
        options_.device, layout_.unsharded_length * ElementBytes(master_dtype_),
        absl::StrCat("full parameters of unit ", options_.unit_name));
  }
  gradient_ = Storage::Deferred(
      options_.device, layout_.unsharded_length * ElementBytes(grad_dtype()),
      absl::StrCat("gradients of unit ", options_.unit_name));
  for (const ShardPiece& piece : layout_.pieces[options_.rank]) {
    parameters_[piece.parameter].piece = piece;
  }
}

bool ShardedGroup::trainable() const {
  return std::any_of(
      parameters_.begin(), parameters_.end(),
      [](const GroupParameter& p) { return p.variable.requires_grad(); });
}

int64_t ShardedGroup::gathered_bytes() const { return gathered()->num_bytes(); }
int64_t ShardedGroup::gradient_bytes() const { return gradient_->num_bytes(); }

Tensor ShardedGroup::Unpermuted(const Tensor& stored,
                                const GroupParameter& p) const {
  return stored.Permute(Inverse(p.order));
}

void ShardedGroup::AllocateShard(std::shared_ptr<Storage> common) {
  common_ = std::move(common);
  if (common_ == nullptr) {
    MemoryCategoryGuard guard(MemoryCategory::kParameter);
    shard_ =
        Tensor::Empty({layout_.shard_length}, {master_dtype_, options_.device});
    shard_.storage()->set_name(
        absl::StrCat("shard of unit ", options_.unit_name));
    ops::Fill(shard_, 0.0);
  }
  if (options_.world_size == 1 && compute_dtype() == master_dtype_) {
    gathered_ = shard_.storage();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    GroupParameter& p = parameters_[i];
    const int64_t offset = layout_.unsharded_offsets[i];
    const Tensor stored =
        Tensor::View(gathered_, offset, StoredShape(p), compute_dtype());
    p.unsharded =
        Unpermuted(always_whole() ? WithOwnVersion(stored) : stored, p);
    if (full_gathered_ != nullptr) {
      p.unsharded_full = Unpermuted(
          Tensor::View(full_gathered_, offset, StoredShape(p), master_dtype_),
          p);
    }
    p.grad = Unpermuted(
        Tensor::View(gradient_, offset, StoredShape(p), grad_dtype()), p);
    p.local =
        always_whole() ? p.unsharded : WithOwnVersion(LocalView(shard_, i));
  }
}

// The same memory through a storage of its own: a write of one parameter is no
// change of the others. `part` is contiguous.
Tensor ShardedGroup::WithOwnVersion(const Tensor& part) const {
  if (part.is_meta()) return part;
  return Tensor::View(Storage::Borrowed(part.device(), part.data(),
                                        part.num_bytes(), part.storage()),
                      0, part.shape(), part.dtype());
}

// Where in the whole an element of this rank's shard belongs.
int64_t ShardedGroup::PlaceOf(int64_t shard_offset) const {
  for (const CollectivePart& part : layout_.parts) {
    const int64_t at = shard_offset - part.shard_offset;
    if (at < 0 || at >= part.part_length) continue;
    if (!part.packed) {
      return part.unsharded_offset + options_.rank * part.part_length + at;
    }
    for (const PackedCopy& copy : layout_.packed_copies) {
      const int64_t inside = at - copy.block_offset;
      if (inside < 0 || inside >= copy.length) continue;
      return copy.unsharded_offset + options_.rank * copy.length + inside;
    }
  }
  return 0;  // Of an empty piece.
}

// Elements of the shard that lie together: of one parameter.
Tensor ShardedGroup::MasterVector(int64_t shard_offset, int64_t length) const {
  if (!in_place()) return shard_.Narrow(0, shard_offset, length);
  return Vector(common_, PlaceOf(shard_offset), length, master_dtype_);
}

// Version 2: the rows that this rank keeps. Version 1: a vector. Of the
// masters in place when `shard` is undefined.
Tensor ShardedGroup::LocalView(const Tensor& shard, size_t index) const {
  const GroupParameter& p = parameters_[index];
  const int64_t length = p.piece.has_value() ? p.piece->length : 0;
  const int64_t offset = p.piece.has_value() ? p.piece->shard_offset : 0;
  Shape shape{length};
  const Shape stored = StoredShape(p);
  if (options_.fsdp_version != 1 && stored.num_dims() > 0) {
    const int64_t rows = stored.dim(0);
    shape = stored;
    shape.set_dim(0, rows > 0 && stored.num_elements() > 0
                         ? length / (stored.num_elements() / rows)
                         : 0);
  }
  if (!shard.defined()) {
    return Tensor::View(common_, PlaceOf(offset), shape, master_dtype_);
  }
  return Tensor::View(shard.storage(), offset, shape, shard.dtype());
}

void ShardedGroup::SetFromWhole(size_t index, const Tensor& whole) {
  const GroupParameter& p = parameters_[index];
  p.local.storage()->BumpVersion();
  if (!p.piece.has_value()) return;
  const Tensor flat = ops::Contiguous(whole.Permute(p.order)).Flatten();
  ops::Copy(flat.Narrow(0, p.piece->parameter_begin, p.piece->length),
            MasterVector(p.piece->shard_offset, p.piece->length));
}

namespace {

bool IsSameView(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() &&
         a.storage_offset() == b.storage_offset() && a.shape() == b.shape() &&
         a.strides() == b.strides() && a.dtype() == b.dtype();
}

}  // namespace

bool ShardedGroup::TakeReplacedValues(bool at_rest, bool show_whole) {
  bool any = false;
  for (GroupParameter& p : parameters_) {
    const Tensor& data = p.variable.data();
    if (IsSameView(data, show_whole ? Unsharded(p) : p.local)) continue;
    if ((!at_rest && !always_whole()) || data.shape() != p.local.shape() ||
        data.dtype() != p.local.dtype() || data.device() != p.local.device()) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "sharded parameter ", p.name, ": its value was replaced by ",
          data.ToString(), at_rest ? "" : " while it was gathered",
          ", wanted this rank's part, ", p.local.ToString(),
          ", between steps; set whole values with SetFullParameter, or change "
          "the module before it is sharded")));
    }
    ops::Copy(data, p.local);
    p.variable.set_data(p.local);
    any = true;
  }
  return any;
}

void ShardedGroup::ShowLocal() {
  for (GroupParameter& p : parameters_) p.variable.set_data(p.local);
}
void ShardedGroup::ShowUnsharded() {
  for (GroupParameter& p : parameters_) p.variable.set_data(Unsharded(p));
}

Tensor ShardedGroup::WholeParameters() const {
  return Vector(gathered(), 0, layout_.unsharded_length, gathered_dtype());
}
Tensor ShardedGroup::WholeGradient() const {
  return Vector(gradient_, 0, layout_.unsharded_length, grad_dtype());
}

void ShardedGroup::AppendGatherParts(const Tensor& source, const Tensor& whole,
                                     bool common,
                                     std::vector<GatherPart>& parts) const {
  const auto add = [&](int64_t shard_offset, int64_t place, int64_t length) {
    parts.push_back({source.defined() ? source.Narrow(0, shard_offset, length)
                                      : MasterVector(shard_offset, length),
                     whole.Narrow(0, place, length * options_.world_size)});
  };
  for (const CollectivePart& part : layout_.parts) {
    if (!part.packed || !common) {
      add(part.shard_offset, part.unsharded_offset, part.part_length);
      continue;
    }
    for (const PackedCopy& copy : layout_.packed_copies) {
      add(part.shard_offset + copy.block_offset, copy.unsharded_offset,
          copy.length);
    }
  }
}

void ShardedGroup::AppendReduceParts(const Tensor& wire,
                                     const Tensor& shard_grad, bool accumulate,
                                     std::vector<ReducePart>& parts) const {
  for (const CollectivePart& part : layout_.parts) {
    parts.push_back({wire.Narrow(0, part.unsharded_offset,
                                 part.part_length * options_.world_size),
                     shard_grad.Narrow(0, part.shard_offset, part.part_length),
                     accumulate});
  }
}

namespace {

const CollectivePart* PackedPart(const ShardLayout& layout) {
  for (const CollectivePart& part : layout.parts) {
    if (part.packed) return &part;
  }
  return nullptr;
}

// The pieces of one packed parameter, [ranks, length], inside the block.
Tensor BlockPieces(const Tensor& whole, const CollectivePart& part,
                   const PackedCopy& copy, int world_size) {
  return whole.Narrow(0, part.unsharded_offset, part.part_length * world_size)
      .Reshape({world_size, part.part_length})
      .Narrow(1, copy.block_offset, copy.length);
}

Tensor Place(const Tensor& whole, const PackedCopy& copy, int world_size) {
  return whole.Narrow(0, copy.unsharded_offset, copy.length * world_size)
      .Reshape({world_size, copy.length});
}

}  // namespace

int64_t ShardedGroup::in_place_length() const {
  const CollectivePart* part = PackedPart(layout_);
  return part == nullptr ? layout_.unsharded_length : part->unsharded_offset;
}

void ShardedGroup::CopyOutPacked(const Tensor& whole) const {
  const CollectivePart* part = PackedPart(layout_);
  if (part == nullptr) return;
  for (const PackedCopy& copy : layout_.packed_copies) {
    ops::Copy(BlockPieces(whole, *part, copy, options_.world_size),
              Place(whole, copy, options_.world_size));
  }
}

void ShardedGroup::CopyInPacked() const {
  const CollectivePart* part = PackedPart(layout_);
  if (part == nullptr) return;
  const Tensor whole = WholeGradient();
  for (const PackedCopy& copy : layout_.packed_copies) {
    ops::Copy(Place(whole, copy, options_.world_size),
              BlockPieces(whole, *part, copy, options_.world_size));
  }
}

void ShardedGroup::ZeroUnwritten() const {
  const Tensor whole = WholeGradient();
  for (const auto& [begin, length] : gaps_) {
    ops::Fill(whole.Narrow(0, begin, length), 0.0);
  }
  for (const GroupParameter& p : parameters_) {
    if (!p.grad_written) ops::Fill(p.grad, 0.0);
  }
}

const Tensor& ShardedGroup::ShardGradient() {
  if (!shard_grad_.defined()) {
    MemoryCategoryGuard guard(MemoryCategory::kGradient);
    shard_grad_ =
        Tensor::Empty({layout_.shard_length}, {grad_dtype(), options_.device});
    ops::Fill(shard_grad_, 0.0);
  }
  return shard_grad_;
}

Tensor ShardedGroup::LocalGradient(size_t index) const {
  const GroupParameter& p = parameters_[index];
  if (!always_whole()) return LocalView(shard_grad_, index);
  return Unpermuted(
      Tensor::View(shard_grad_.storage(), layout_.unsharded_offsets[index],
                   StoredShape(p), grad_dtype()),
      p);
}

bool ShardedGroup::PrepareAccumulation() {
  const bool any = std::any_of(
      parameters_.begin(), parameters_.end(),
      [](const GroupParameter& p) { return p.variable.grad().defined(); });
  if (!any) return false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].variable.grad().defined()) {
      ops::Fill(LocalGradient(i), 0.0);
    }
  }
  return true;
}

}  // namespace tessera
