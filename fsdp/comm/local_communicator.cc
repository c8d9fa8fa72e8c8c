#include "fsdp/comm/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/byte_copy.h"
#include "fsdp/comm/reduce_tree.h"
#include "kernels/status.h"

namespace tessera {

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
  std::vector<RankWord> words(world_size());
  for (int r = 0; r < world_size(); ++r) {
    const Posted& posted = control_->posted(r, header.sequence);
    words[r].header = &posted.header;
    if (posted.header.status_code != 0) words[r].reason = SmallOf(posted);
  }
  return CompareWords(words);
}

std::string LocalCommunicator::SmallOf(const Posted& posted) {
  return std::string(reinterpret_cast<const char*>(posted.small),
                     posted.num_small);
}

absl::Status LocalCommunicator::RunFailTogether(const CollectiveHeader& header,
                                                const absl::Status& status) {
  Posted& mine = StartPosting(header);
  mine.header.status_code = static_cast<int32_t>(status.code());
  const std::string reason(status.message());
  mine.num_small = std::min(static_cast<int>(reason.size()), kMaxSmallBytes);
  std::memcpy(mine.small, reason.data(), mine.num_small);
  return Meet(header);
}

absl::StatusOr<std::vector<std::string>> LocalCommunicator::ExchangeSmall(
    const CollectiveHeader& header, const std::string& value) {
  Posted& mine = StartPosting(header);
  TESSERA_CHECK(static_cast<int>(value.size()) <= kMaxSmallBytes);
  mine.num_small = static_cast<int32_t>(value.size());
  std::memcpy(mine.small, value.data(), value.size());
  RETURN_IF_ERROR(Meet(header));
  std::vector<std::string> values;
  values.reserve(world_size());
  for (int r = 0; r < world_size(); ++r) {
    values.push_back(SmallOf(control_->posted(r, header.sequence)));
  }
  // The next exchange may be of the same collective and the same place.
  RETURN_IF_ERROR(control_->Barrier(Describe(header)));
  return values;
}

absl::StatusOr<absl::Status> LocalCommunicator::AgreeSmall(
    const CollectiveHeader& header, const absl::Status& status) {
  std::string mine;
  if (!status.ok()) {
    mine = absl::StrCat(" ", status.message()).substr(0, kMaxSmallBytes);
    mine[0] = static_cast<char>(status.code());
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

}  // namespace tessera
