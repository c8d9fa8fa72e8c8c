// Of GlooCommunicator: collectives whose every rank holds whole tensors.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "fsdp/comm/byte_copy.h"
#include "fsdp/comm/gloo_collectives.h"
#include "fsdp/comm/reduce_tree.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// What is received before it is summed passes through this much memory.
constexpr int64_t kScratchBytes = 4 << 20;
// Up to this many received bytes a sum is taken by every rank.
constexpr int64_t kSmallReduceBytes = 64 << 10;

// Whether every rank gets every other's whole tensor, and sums it: one exchange
// in place of two, and between two ranks no more bytes.
bool IsExchangedWhole(const TensorMemory& tensor, int world_size) {
  return tensor.num_bytes() * world_size <=
         (world_size == 2 ? kScratchBytes : kSmallReduceBytes);
}

std::vector<int64_t> SizesOf(std::span<const TensorMemory> tensors) {
  std::vector<int64_t> sizes;
  sizes.reserve(tensors.size());
  for (const TensorMemory& tensor : tensors) {
    sizes.push_back(tensor.num_bytes());
  }
  return sizes;
}

// Of each rank's slice.
int64_t ElementsAtOnce(const TensorMemory& tensor, int world_size) {
  const int64_t room = kScratchBytes / world_size / ElementBytes(tensor.dtype);
  return std::min(SliceOfRank(tensor.num_elements, 0, world_size).length,
                  std::max<int64_t>(1, room));
}

int64_t ScratchFor(const TensorMemory& tensor, int world_size) {
  if (IsExchangedWhole(tensor, world_size)) {
    return tensor.num_bytes() * world_size;
  }
  return ElementsAtOnce(tensor, world_size) * ElementBytes(tensor.dtype) *
         world_size;
}

std::string Pack(std::span<const TensorMemory> tensors,
                 const StagingRound& plan) {
  std::string packed(GlooGreeting::kSmallBytes, 0);
  for (const StagingPiece& piece : plan) {
    std::memcpy(packed.data() + piece.staging_offset, tensors[piece.part].data,
                piece.length);
  }
  return packed;
}

}  // namespace

absl::Status GlooCommunicator::ReduceInGreetings(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    const Reduction& reduction, const StagingRound& plan) {
  RETURN_IF_ERROR(Meet(header, Pack(tensors, plan)));
  std::vector<const void*> inputs(world_size());
  for (const StagingPiece& piece : plan) {
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = GreetingOf(r).small + piece.staging_offset;
    }
    const TensorMemory& tensor = tensors[piece.part];
    ReduceTree({.inputs = inputs,
                .dtype = tensor.dtype,
                .num_elements = tensor.num_elements,
                .output = tensor.data,
                .output_dtype = tensor.dtype,
                .reduction = reduction});
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::BroadcastInGreetings(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    int root, const StagingRound& plan) {
  RETURN_IF_ERROR(Meet(header, rank() == root ? Pack(tensors, plan) : ""));
  if (rank() == root) return absl::OkStatus();
  for (const StagingPiece& piece : plan) {
    std::memcpy(tensors[piece.part].data,
                GreetingOf(root).small + piece.staging_offset, piece.length);
  }
  return absl::OkStatus();
}

std::vector<ReceiveMessage> GlooCommunicator::WholeFromOthers(
    const TensorMemory& tensor, char* scratch) const {
  std::vector<ReceiveMessage> receives;
  for (int r = 0; r < world_size(); ++r) {
    const int64_t n = tensor.num_bytes();
    if (IsOther(r)) receives.push_back({r, scratch + r * n, n});
  }
  return receives;
}

absl::Status GlooCommunicator::ReduceWhole(
    const CollectiveHeader& header, const TensorMemory& tensor,
    const Reduction& reduction, char* scratch,
    std::span<const ReceiveMessage> receives) {
  const int64_t n = tensor.num_bytes();
  std::vector<SendMessage> sends;
  std::vector<const void*> inputs(world_size());
  for (int r = 0; r < world_size(); ++r) {
    inputs[r] = IsOther(r) ? scratch + r * n : tensor.data;
    if (IsOther(r)) sends.push_back({r, tensor.data, n});
  }
  RETURN_IF_ERROR(mesh_->Exchange(Describe(header), sends, receives));
  ReduceTree({.inputs = inputs,
              .dtype = tensor.dtype,
              .num_elements = tensor.num_elements,
              .output = tensor.data,
              .output_dtype = tensor.dtype,
              .reduction = reduction});
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ReduceSlice(const CollectiveHeader& header,
                                           const TensorMemory& tensor,
                                           const Reduction& reduction,
                                           const SliceRange& range) {
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  const auto piece = [&](int r) {
    const ElementSlice slice =
        SliceOfRank(tensor.num_elements, r, world_size());
    const int64_t begin = std::min(range.offset, slice.length);
    return ElementSlice{slice.begin + begin,
                        std::min(range.most, slice.length - begin)};
  };
  const ElementSlice mine = piece(rank());
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  std::vector<const void*> inputs(world_size());
  for (int r = 0; r < world_size(); ++r) {
    if (!IsOther(r)) {
      inputs[r] = Bytes(tensor.data) + mine.begin * element_bytes;
      continue;
    }
    const ElementSlice theirs = piece(r);
    char* place = range.scratch + r * range.most * element_bytes;
    inputs[r] = place;
    sends.push_back({r, Bytes(tensor.data) + theirs.begin * element_bytes,
                     theirs.length * element_bytes});
    receives.push_back({r, place, mine.length * element_bytes});
  }
  RETURN_IF_ERROR(mesh_->Exchange(Describe(header), sends, receives));
  ReduceTree({.inputs = inputs,
              .dtype = tensor.dtype,
              .num_elements = mine.length,
              .output = Bytes(tensor.data) + mine.begin * element_bytes,
              .output_dtype = tensor.dtype,
              .reduction = reduction});
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ReduceLarge(const CollectiveHeader& header,
                                           const TensorMemory& tensor,
                                           const Reduction& reduction,
                                           char* scratch) {
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  const int64_t longest =
      SliceOfRank(tensor.num_elements, 0, world_size()).length;
  const int64_t most = ElementsAtOnce(tensor, world_size());
  for (int64_t offset = 0; offset < longest; offset += most) {
    RETURN_IF_ERROR(
        ReduceSlice(header, tensor, reduction, {offset, most, scratch}));
  }
  const auto slice = [&](int r) {
    return SliceOfRank(tensor.num_elements, r, world_size());
  };
  const ElementSlice mine = slice(rank());
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (int r = 0; r < world_size(); ++r) {
    if (!IsOther(r)) continue;
    sends.push_back({r, Bytes(tensor.data) + mine.begin * element_bytes,
                     mine.length * element_bytes});
    receives.push_back({r, Bytes(tensor.data) + slice(r).begin * element_bytes,
                        slice(r).length * element_bytes});
  }
  return mesh_->Exchange(Describe(header), sends, receives);
}

absl::Status GlooCommunicator::RunAllReduce(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    const Reduction& reduction) {
  if (const auto plan = PlanGreeting(SizesOf(tensors)); plan.has_value()) {
    return ReduceInGreetings(header, tensors, reduction, *plan);
  }
  int64_t scratch_bytes = 0;
  for (const TensorMemory& tensor : tensors) {
    scratch_bytes = std::max(scratch_bytes, ScratchFor(tensor, world_size()));
  }
  std::unique_ptr<GlooScratch> scratch;
  const absl::Status room =
      Try([&] { scratch = std::make_unique<GlooScratch>(scratch_bytes); });
  // The first exchange may be expected.
  const bool expects =
      room.ok() && IsExchangedWhole(tensors.front(), world_size());
  if (expects) {
    RETURN_IF_ERROR(
        mesh_->Expect(WholeFromOthers(tensors.front(), scratch->data())));
  }
  RETURN_IF_ERROR(Meet(header, "", room));
  for (const TensorMemory& tensor : tensors) {
    if (tensor.num_elements == 0) continue;
    if (!IsExchangedWhole(tensor, world_size())) {
      RETURN_IF_ERROR(ReduceLarge(header, tensor, reduction, scratch->data()));
      continue;
    }
    std::vector<ReceiveMessage> receives;
    if (!expects || &tensor != &tensors.front()) {
      receives = WholeFromOthers(tensor, scratch->data());
    }
    RETURN_IF_ERROR(
        ReduceWhole(header, tensor, reduction, scratch->data(), receives));
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::RunBroadcast(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    int root) {
  if (const auto plan = PlanGreeting(SizesOf(tensors)); plan.has_value()) {
    return BroadcastInGreetings(header, tensors, root, *plan);
  }
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (const TensorMemory& tensor : tensors) {
    if (rank() != root) {
      receives.push_back({root, tensor.data, tensor.num_bytes()});
      continue;
    }
    for (int r = 0; r < world_size(); ++r) {
      if (IsOther(r)) sends.push_back({r, tensor.data, tensor.num_bytes()});
    }
  }
  RETURN_IF_ERROR(mesh_->Expect(receives));
  RETURN_IF_ERROR(Meet(header));
  return mesh_->Exchange(Describe(header), sends, {});
}

}  // namespace tessera
