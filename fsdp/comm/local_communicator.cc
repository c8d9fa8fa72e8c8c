#include "fsdp/comm/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/reduce_tree.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// All-reduces up to this size are summed by every rank, in one barrier.
constexpr int64_t kSmallReduceBytes = 32 << 10;

void Copy(void* to, const void* from, int64_t num_bytes) {
  if (to != from && num_bytes > 0) std::memcpy(to, from, num_bytes);
}

char* Bytes(void* data) { return static_cast<char*>(data); }
const char* Bytes(const void* data) { return static_cast<const char*>(data); }

}  // namespace

LocalCommunicator::LocalCommunicator(CommunicatorGroup group,
                                     const WaitOptions& wait,
                                     std::unique_ptr<SharedControl> control,
                                     std::unique_ptr<PeerMemory> peers)
    : HostCommunicator(std::move(group), wait),
      control_(std::move(control)),
      peers_(std::move(peers)) {}

LocalCommunicator::~LocalCommunicator() { control_->Leave(); }

void LocalCommunicator::AbortWaits(const absl::Status& status) {
  control_->Abort(status);
}

Posted& LocalCommunicator::StartPosting(const CollectiveHeader& header) {
  Posted& posted = control_->posted(rank(), header.sequence);
  posted.header = header;
  posted.num_small = 0;
  return posted;
}

absl::Status LocalCommunicator::Meet(const CollectiveHeader& header) {
  RETURN_IF_ERROR(control_->Barrier(Describe(header)));
  std::vector<const CollectiveHeader*> headers;
  for (int r = 0; r < world_size(); ++r) {
    headers.push_back(&control_->posted(r, header.sequence).header);
  }
  return CompareHeaders(headers, group());
}

absl::StatusOr<std::vector<std::string>> LocalCommunicator::ExchangeSmall(
    const CollectiveHeader& header, const std::string& value) {
  Posted& mine = StartPosting(header);
  TESSERA_CHECK(static_cast<int>(value.size()) <= kMaxSmallBytes);
  mine.num_small = static_cast<int32_t>(value.size());
  std::memcpy(mine.small, value.data(), value.size());
  RETURN_IF_ERROR(Meet(header));
  std::vector<std::string> values;
  for (int r = 0; r < world_size(); ++r) {
    const Posted& posted = control_->posted(r, header.sequence);
    values.emplace_back(reinterpret_cast<const char*>(posted.small),
                        posted.num_small);
  }
  // The next exchange may be of the same collective and the same place.
  RETURN_IF_ERROR(control_->Barrier(Describe(header)));
  return values;
}

absl::StatusOr<absl::Status> LocalCommunicator::AgreeSmall(
    const CollectiveHeader& header, const absl::Status& status) {
  std::string mine;
  if (!status.ok()) {
    mine = std::string(status.message()).substr(0, kMaxSmallBytes - 1);
    mine.insert(mine.begin(), static_cast<char>(status.code()));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   ExchangeSmall(header, mine));
  for (int r = 0; r < world_size(); ++r) {
    if (all[r].empty()) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(all[r][0]),
        absl::StrCat(group().RankName(r), ": ", all[r].substr(1)));
  }
  return absl::OkStatus();
}

absl::Status LocalCommunicator::RunBarrier(const CollectiveHeader& header) {
  StartPosting(header);
  return Meet(header);
}

PartRef LocalCommunicator::ExportPart(const void* data, int64_t num_bytes,
                                      size_t index) const {
  if (index >= kMaxPartRefs) return PartRef{};
  return peers_->Export(data, num_bytes);
}

LocalCommunicator::Route LocalCommunicator::RouteOf(
    const CollectiveHeader& header, size_t index) const {
  if (index >= kMaxPartRefs) return Route::kStaged;
  const PartRef& first = control_->posted(0, header.sequence).refs[index];
  bool any_common = false;
  bool all_same = true;
  for (int r = 0; r < world_size(); ++r) {
    const PartRef& ref = control_->posted(r, header.sequence).refs[index];
    if (ref.segment < 0 || ref.segment != first.segment) return Route::kStaged;
    any_common |= ref.common != 0;
    all_same &= ref == first;
  }
  if (!any_common) return Route::kDirect;
  return all_same ? Route::kCommon : Route::kStaged;
}

const char* LocalCommunicator::ImportPart(const CollectiveHeader& header,
                                          int rank, size_t index) const {
  const PartRef& ref = control_->posted(rank, header.sequence).refs[index];
  return Bytes(peers_->Import(rank, ref));
}

std::vector<LocalCommunicator::Round> LocalCommunicator::PlanRounds(
    std::span<const int64_t> part_bytes, int copies) const {
  return PlanStaging(part_bytes, copies, peers_->staging_bytes() / 2);
}

char* LocalCommunicator::StagingHalf(int rank) const {
  const int64_t half = peers_->staging_bytes() / 2;
  return Bytes(peers_->Staging(rank)) + (staging_round_ % 2) * half;
}

// Memory in which the others find this rank's part, with the part put there
// when it is not common: nobody else writes there, and nobody reads it before
// the first barrier.
PartRef LocalCommunicator::ExportGather(const GatherMemory& part,
                                        size_t index) const {
  const int64_t n = part.part_bytes;
  const PartRef whole = ExportPart(part.whole, n * world_size(), index);
  if (whole.common != 0) return whole;
  char* place = Bytes(part.whole) + n * rank();
  Copy(place, part.shard, n);
  return whole.segment >= 0 ? ExportPart(place, n, index)
                            : ExportPart(part.shard, n, index);
}

bool LocalCommunicator::IsCommon(const Tensor& tensor) const {
  return peers_->Export(tensor.data(), tensor.num_bytes()).common != 0;
}

absl::Status LocalCommunicator::RunAllGather(
    const CollectiveHeader& header, std::span<const GatherMemory> parts) {
  Posted& mine = StartPosting(header);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartRef ref = ExportGather(parts[i], i);
    if (i < kMaxPartRefs) mine.refs[i] = ref;
  }
  RETURN_IF_ERROR(Meet(header));
  std::vector<int64_t> staged(parts.size(), -1);
  bool direct = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GatherMemory& part = parts[i];
    const int64_t n = part.part_bytes;
    char* whole = Bytes(part.whole);
    const Route route = RouteOf(header, i);
    if (route == Route::kStaged) {
      staged[i] = n;
      continue;
    }
    direct = true;
    if (route == Route::kCommon) {
      Copy(whole + n * rank(), part.shard, n);
      continue;
    }
    for (int r = 0; r < world_size(); ++r) {
      if (r != rank()) Copy(whole + n * r, ImportPart(header, r, i), n);
    }
  }
  RETURN_IF_ERROR(GatherStaged(Describe(header), parts, staged));
  return direct ? control_->Barrier(Describe(header)) : absl::OkStatus();
}

absl::Status LocalCommunicator::GatherStaged(
    const std::string& operation, std::span<const GatherMemory> parts,
    std::span<const int64_t> part_bytes) {
  for (const Round& round : PlanRounds(part_bytes, 1)) {
    char* mine = StagingHalf(rank());
    for (const StagingPiece& piece : round) {
      Copy(mine + piece.staging_offset,
           Bytes(parts[piece.part].shard) + piece.begin, piece.length);
    }
    RETURN_IF_ERROR(control_->Barrier(operation));
    for (const StagingPiece& piece : round) {
      const GatherMemory& part = parts[piece.part];
      for (int r = 0; r < world_size(); ++r) {
        Copy(Bytes(part.whole) + part.part_bytes * r + piece.begin,
             StagingHalf(r) + piece.staging_offset, piece.length);
      }
    }
    ++staging_round_;
  }
  return absl::OkStatus();
}

void LocalCommunicator::ReducePiece(const ReduceMemory& part,
                                    const Reduction& reduction,
                                    std::span<const void* const> inputs,
                                    int64_t begin_element,
                                    int64_t num_elements) const {
  ReduceTree({.inputs = inputs,
              .dtype = part.dtype,
              .num_elements = num_elements,
              .output = Bytes(part.shard) +
                        begin_element * ElementBytes(part.shard_dtype),
              .output_dtype = part.shard_dtype,
              .accumulate = part.accumulate,
              .reduction = reduction});
}

absl::Status LocalCommunicator::RunReduceScatter(
    const CollectiveHeader& header, std::span<const ReduceMemory> parts,
    const Reduction& reduction, std::span<uint8_t> flags) {
  if (flags.size() > kMaxSmallBytes) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kMaxSmallBytes,
                                                   " flags, got ", flags.size(),
                                                   "; use smaller units"));
  }
  Posted& mine = StartPosting(header);
  std::copy(flags.begin(), flags.end(), mine.small);
  std::vector<int64_t> staged(parts.size(), -1);
  for (size_t i = 0; i < parts.size(); ++i) {
    staged[i] = parts[i].part_elements * ElementBytes(parts[i].dtype);
    const PartRef ref = ExportPart(parts[i].whole, staged[i] * world_size(), i);
    if (i < kMaxPartRefs) mine.refs[i] = ref;
  }
  RETURN_IF_ERROR(Meet(header));
  for (int r = 0; r < world_size(); ++r) {
    const Posted& posted = control_->posted(r, header.sequence);
    for (size_t i = 0; i < flags.size(); ++i) {
      flags[i] = std::max(flags[i], posted.small[i]);
    }
  }
  bool direct = false;
  std::vector<const void*> inputs(world_size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (RouteOf(header, i) == Route::kStaged) continue;
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = ImportPart(header, r, i) + staged[i] * rank();
    }
    ReducePiece(parts[i], reduction, inputs, 0, parts[i].part_elements);
    staged[i] = -1;
    direct = true;
  }
  RETURN_IF_ERROR(ReduceStaged(Describe(header), parts, staged, reduction));
  return direct ? control_->Barrier(Describe(header)) : absl::OkStatus();
}

absl::Status LocalCommunicator::ReduceStaged(
    const std::string& operation, std::span<const ReduceMemory> parts,
    std::span<const int64_t> part_bytes, const Reduction& reduction) {
  std::vector<const void*> inputs(world_size());
  for (const Round& round : PlanRounds(part_bytes, world_size())) {
    char* mine = StagingHalf(rank());
    for (const StagingPiece& piece : round) {
      const char* whole = Bytes(parts[piece.part].whole) + piece.begin;
      for (int r = 0; r < world_size(); ++r) {
        Copy(mine + piece.staging_offset + r * RoundUpStaging(piece.length),
             whole + r * part_bytes[piece.part], piece.length);
      }
    }
    RETURN_IF_ERROR(control_->Barrier(operation));
    for (const StagingPiece& piece : round) {
      const ReduceMemory& part = parts[piece.part];
      for (int r = 0; r < world_size(); ++r) {
        inputs[r] = StagingHalf(r) + piece.staging_offset +
                    rank() * RoundUpStaging(piece.length);
      }
      const int64_t element_bytes = ElementBytes(part.dtype);
      ReducePiece(part, reduction, inputs, piece.begin / element_bytes,
                  piece.length / element_bytes);
    }
    ++staging_round_;
  }
  return absl::OkStatus();
}

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

absl::Status LocalCommunicator::RunAllReduce(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    const Reduction& reduction) {
  if (header.num_bytes <= kSmallReduceBytes) {
    return AllReduceSmall(header, tensors, reduction);
  }
  Posted& mine = StartPosting(header);
  std::vector<int64_t> staged;
  for (size_t i = 0; i < tensors.size(); ++i) {
    staged.push_back(tensors[i].num_bytes());
    const PartRef ref = ExportPart(tensors[i].data, staged[i], i);
    if (i < kMaxPartRefs) mine.refs[i] = ref;
  }
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
  Posted& mine = StartPosting(header);
  std::vector<int64_t> staged;
  for (size_t i = 0; i < tensors.size(); ++i) {
    staged.push_back(tensors[i].num_bytes());
    const PartRef ref = ExportPart(tensors[i].data, staged[i], i);
    if (i < kMaxPartRefs) mine.refs[i] = ref;
  }
  RETURN_IF_ERROR(Meet(header));
  const Posted& source = control_->posted(root, header.sequence);
  bool direct = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i >= kMaxPartRefs || source.refs[i].segment < 0) continue;
    const bool same =
        mine.refs[i].common != 0 && mine.refs[i] == source.refs[i];
    if (rank() != root && !same) {
      Copy(tensors[i].data, ImportPart(header, root, i), staged[i]);
    }
    staged[i] = -1;
    direct = true;
  }
  for (const Round& round : PlanRounds(staged, 1)) {
    if (rank() == root) CopyToStaging(tensors, round);
    RETURN_IF_ERROR(control_->Barrier(Describe(header)));
    for (const StagingPiece& piece : round) {
      if (rank() == root) break;
      Copy(Bytes(tensors[piece.part].data) + piece.begin,
           StagingHalf(root) + piece.staging_offset, piece.length);
    }
    ++staging_round_;
  }
  return direct ? control_->Barrier(Describe(header)) : absl::OkStatus();
}

}  // namespace tessera
