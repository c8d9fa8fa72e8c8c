// Of LocalCommunicator: collectives whose every rank holds whole tensors.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/byte_copy.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/comm/reduce_tree.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// All-reduces up to this size are summed by every rank, in one barrier.
constexpr int64_t kSmallReduceBytes = 32 << 10;

}  // namespace

void LocalCommunicator::CopyToStaging(std::span<const TensorMemory> tensors,
                                      const Round& round) {
  for (const StagingPiece& piece : round) {
    Copy(StagingHalf(rank()) + piece.staging_offset,
         Bytes(tensors[piece.part].data) + piece.begin, piece.length);
  }
}

void LocalCommunicator::ReduceFromStaging(std::span<const TensorMemory> tensors,
                                          const Round& round,
                                          const Reduction& reduction) {
  std::vector<const void*> inputs(world_size());
  for (const StagingPiece& piece : round) {
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = StagingHalf(r) + piece.staging_offset;
    }
    const TensorMemory& tensor = tensors[piece.part];
    ReduceTree({.inputs = inputs,
                .dtype = tensor.dtype,
                .num_elements = piece.length / ElementBytes(tensor.dtype),
                .output = Bytes(tensor.data) + piece.begin,
                .output_dtype = tensor.dtype,
                .reduction = reduction});
  }
  ++staging_round_;
}

absl::Status LocalCommunicator::AllReduceSmall(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    const Reduction& reduction) {
  std::vector<int64_t> part_bytes;
  for (const TensorMemory& tensor : tensors) {
    part_bytes.push_back(tensor.num_bytes());
  }
  const std::vector<Round> rounds = PlanRounds(part_bytes, 1);
  StartPosting(header);
  if (!rounds.empty()) CopyToStaging(tensors, rounds[0]);
  RETURN_IF_ERROR(Meet(header));
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (i > 0) {
      CopyToStaging(tensors, rounds[i]);
      RETURN_IF_ERROR(control_->Barrier(Describe(header)));
    }
    ReduceFromStaging(tensors, rounds[i], reduction);
  }
  return absl::OkStatus();
}

// Posts where the tensors are, and returns their sizes.
std::vector<int64_t> LocalCommunicator::PostTensors(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors) {
  Posted& mine = StartPosting(header);
  std::vector<int64_t> sizes;
  sizes.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    sizes.push_back(tensors[i].num_bytes());
    const PartRef ref = ExportPart(tensors[i].data, sizes[i], i);
    if (i < kMaxPartRefs) mine.refs[i] = ref;
  }
  return sizes;
}

absl::Status LocalCommunicator::RunAllReduce(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    const Reduction& reduction) {
  if (header.num_bytes <= kSmallReduceBytes) {
    return AllReduceSmall(header, tensors, reduction);
  }
  std::vector<int64_t> staged = PostTensors(header, tensors);
  RETURN_IF_ERROR(Meet(header));
  std::vector<int64_t> direct(tensors.size(), -1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (RouteOf(header, i) == Route::kDirect) {
      std::swap(direct[i], staged[i]);
    }
  }
  RETURN_IF_ERROR(AllReduceDirect(header, tensors, direct, reduction));
  return AllReduceStaged(Describe(header), tensors, staged, reduction);
}

// Each rank sums its slice in place: of all ranks' copies of that slice nobody
// else reads its own. Then each copies the others' sums.
absl::Status LocalCommunicator::AllReduceDirect(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    std::span<const int64_t> part_bytes, const Reduction& reduction) {
  if (std::all_of(part_bytes.begin(), part_bytes.end(),
                  [](int64_t n) { return n < 0; })) {
    return absl::OkStatus();
  }
  std::vector<const void*> inputs(world_size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (part_bytes[i] < 0) continue;
    const TensorMemory& tensor = tensors[i];
    const int64_t element_bytes = ElementBytes(tensor.dtype);
    const ElementSlice slice =
        SliceOfRank(tensor.num_elements, rank(), world_size());
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = ImportPart(header, r, i) + slice.begin * element_bytes;
    }
    ReduceTree({.inputs = inputs,
                .dtype = tensor.dtype,
                .num_elements = slice.length,
                .output = Bytes(tensor.data) + slice.begin * element_bytes,
                .output_dtype = tensor.dtype,
                .reduction = reduction});
  }
  RETURN_IF_ERROR(control_->Barrier(Describe(header)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (part_bytes[i] < 0) continue;
    const int64_t element_bytes = ElementBytes(tensors[i].dtype);
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      const ElementSlice slice =
          SliceOfRank(tensors[i].num_elements, r, world_size());
      const int64_t begin = slice.begin * element_bytes;
      Copy(Bytes(tensors[i].data) + begin, ImportPart(header, r, i) + begin,
           slice.length * element_bytes);
    }
  }
  return control_->Barrier(Describe(header));
}

absl::Status LocalCommunicator::AllReduceStaged(
    const std::string& operation, std::span<const TensorMemory> tensors,
    std::span<const int64_t> part_bytes, const Reduction& reduction) {
  for (const Round& round : PlanRounds(part_bytes, 1)) {
    CopyToStaging(tensors, round);
    RETURN_IF_ERROR(control_->Barrier(operation));
    if (world_size() > 2) {
      RETURN_IF_ERROR(
          ReduceSharesInStaging(operation, tensors, round, reduction));
    } else {
      ReduceFromStaging(tensors, round, reduction);
    }
  }
  return absl::OkStatus();
}

// Of the staged copies of its slice a rank overwrites its own, which nobody
// else reads before the barrier.
absl::Status LocalCommunicator::ReduceSharesInStaging(
    const std::string& operation, std::span<const TensorMemory> tensors,
    const Round& round, const Reduction& reduction) {
  const auto slice = [&](const StagingPiece& piece, int r) {
    const int64_t bytes = ElementBytes(tensors[piece.part].dtype);
    const ElementSlice elements =
        SliceOfRank(piece.length / bytes, r, world_size());
    return ElementSlice{elements.begin * bytes, elements.length * bytes};
  };
  std::vector<const void*> inputs(world_size());
  for (const StagingPiece& piece : round) {
    const ElementSlice mine = slice(piece, rank());
    const int64_t begin = piece.staging_offset + mine.begin;
    for (int r = 0; r < world_size(); ++r) inputs[r] = StagingHalf(r) + begin;
    const DType dtype = tensors[piece.part].dtype;
    ReduceTree({.inputs = inputs,
                .dtype = dtype,
                .num_elements = mine.length / ElementBytes(dtype),
                .output = StagingHalf(rank()) + begin,
                .output_dtype = dtype,
                .reduction = reduction});
  }
  RETURN_IF_ERROR(control_->Barrier(operation));
  for (const StagingPiece& piece : round) {
    for (int r = 0; r < world_size(); ++r) {
      const ElementSlice theirs = slice(piece, r);
      Copy(Bytes(tensors[piece.part].data) + piece.begin + theirs.begin,
           StagingHalf(r) + piece.staging_offset + theirs.begin, theirs.length);
    }
  }
  ++staging_round_;
  return absl::OkStatus();
}

absl::Status LocalCommunicator::RunBroadcast(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    int root) {
  std::vector<int64_t> staged = PostTensors(header, tensors);
  RETURN_IF_ERROR(Meet(header));
  bool direct = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Route route = RouteOf(header, i);
    if (route == Route::kStaged) continue;
    if (route == Route::kDirect && rank() != root) {
      Copy(tensors[i].data, ImportPart(header, root, i), staged[i]);
    }
    staged[i] = -1;
    direct = true;
  }
  RETURN_IF_ERROR(BroadcastStaged(Describe(header), tensors, staged, root));
  return direct ? control_->Barrier(Describe(header)) : absl::OkStatus();
}

absl::Status LocalCommunicator::BroadcastStaged(
    const std::string& operation, std::span<const TensorMemory> tensors,
    std::span<const int64_t> part_bytes, int root) {
  for (const Round& round : PlanRounds(part_bytes, 1)) {
    if (rank() == root) CopyToStaging(tensors, round);
    RETURN_IF_ERROR(control_->Barrier(operation));
    for (const StagingPiece& piece : round) {
      if (rank() == root) break;
      Copy(Bytes(tensors[piece.part].data) + piece.begin,
           StagingHalf(root) + piece.staging_offset, piece.length);
    }
    ++staging_round_;
  }
  return absl::OkStatus();
}

}  // namespace tessera
