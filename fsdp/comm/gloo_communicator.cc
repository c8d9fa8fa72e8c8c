#include "fsdp/comm/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/byte_copy.h"
#include "fsdp/comm/gloo_collectives.h"
#include "fsdp/comm/gloo_mesh.h"
#include "fsdp/comm/reduce_tree.h"
#include "fsdp/comm/store_meeting.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// What is received before it is summed passes through this much memory.
constexpr int64_t kScratchBytes = 4 << 20;

// Of a reduction's rounds.
int64_t ScratchFor(std::span<const int64_t> part_bytes, int world_size) {
  int64_t all = 0;
  for (const int64_t n : part_bytes) all += RoundUpStaging(n) * world_size;
  return std::max(std::min(kScratchBytes, all), world_size * kStagingAlignment);
}

}  // namespace

void GlooCommunicator::Listen() {
  listener_ = store_->AddListener([this](const StoreNews& news) {
    if (!news.channel.empty() && news.channel != id_) return;
    // Others know already.
    StopWithoutTelling(news.status);
    mesh_->Abort(news.status);
  });
}

absl::StatusOr<std::shared_ptr<Communicator>> GlooCommunicator::Split(
    const std::vector<int>& members, const std::string& group_name) {
  RETURN_IF_ERROR(AgreeOnSplit(*this, members, group_name));
  const std::string id = absl::StrCat(id_, "/", num_splits_++, ".", members[0]);
  const CommunicatorGroup part = MakeSubgroup(group(), members, group_name);
  if (make_group_ != nullptr) return make_group_(part, id);
  return MakeGlooCommunicator(store_, part, id, wait());
}

absl::Status GlooCommunicator::Meet(const CollectiveHeader& header,
                                    const std::string& small,
                                    const absl::Status& status) {
  auto& mine = *reinterpret_cast<GlooGreeting*>(mesh_->greeting(rank()));
  mine.header = header;
  mine.header.status_code = static_cast<int32_t>(status.code());
  std::string text = small;
  if (!status.ok()) {
    text = std::string(status.message()).substr(0, GlooGreeting::kSmallBytes);
  }
  mine.num_small = static_cast<int64_t>(text.size());
  TESSERA_CHECK(mine.num_small <= GlooGreeting::kSmallBytes);
  std::memcpy(mine.small, text.data(), text.size());
  if (absl::Status met = mesh_->Greet(Describe(header)); !met.ok()) {
    mesh_->Forget();
    return met;
  }
  std::vector<RankWord> words(world_size());
  for (int r = 0; r < world_size(); ++r) {
    const GlooGreeting& theirs = GreetingOf(r);
    words[r].header = &theirs.header;
    if (theirs.header.status_code != 0) {
      words[r].reason = std::string(theirs.small, theirs.num_small);
    }
  }
  absl::Status compared = CompareWords(words);
  if (!compared.ok()) mesh_->Forget();
  return compared;
}

std::optional<StagingRound> GlooCommunicator::PlanGreeting(
    std::span<const int64_t> piece_bytes) {
  int64_t total = 0;
  for (const int64_t n : piece_bytes) total += n;
  if (total > GlooGreeting::kSmallBytes) return std::nullopt;
  std::vector<StagingRound> rounds =
      PlanStaging(piece_bytes, 1, GlooGreeting::kSmallBytes);
  if (rounds.size() > 1) return std::nullopt;
  return rounds.empty() ? StagingRound() : std::move(rounds[0]);
}

// Each rank's part, in its greeting.
absl::Status GlooCommunicator::GatherInGreetings(
    const CollectiveHeader& header, std::span<const GatherMemory> parts,
    const StagingRound& plan) {
  std::string mine(GlooGreeting::kSmallBytes, 0);
  for (const StagingPiece& piece : plan) {
    std::memcpy(mine.data() + piece.staging_offset, parts[piece.part].shard,
                piece.length);
  }
  RETURN_IF_ERROR(Meet(header, mine));
  for (const StagingPiece& piece : plan) {
    for (int r = 0; r < world_size(); ++r) {
      std::memcpy(Bytes(parts[piece.part].whole) + r * piece.length,
                  GreetingOf(r).small + piece.staging_offset, piece.length);
    }
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::RunAllGather(
    const CollectiveHeader& header, std::span<const GatherMemory> parts) {
  std::vector<int64_t> part_bytes;
  part_bytes.reserve(parts.size());
  for (const GatherMemory& part : parts) part_bytes.push_back(part.part_bytes);
  if (const auto plan = PlanGreeting(part_bytes); plan.has_value()) {
    return GatherInGreetings(header, parts, *plan);
  }
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (const GatherMemory& part : parts) {
    const int64_t n = part.part_bytes;
    for (int r = 0; r < world_size(); ++r) {
      char* place = Bytes(part.whole) + r * n;
      if (IsOther(r)) {
        sends.push_back({r, part.shard, n});
        receives.push_back({r, place, n});
      } else {
        Copy(place, part.shard, n);
      }
    }
  }
  RETURN_IF_ERROR(mesh_->Expect(receives));
  RETURN_IF_ERROR(Meet(header));
  return mesh_->Exchange(Describe(header), sends, {});
}

void GlooCommunicator::AddMessages(std::span<const ReduceMemory> parts,
                                   const StagingRound& round, char* scratch,
                                   std::vector<SendMessage>& sends,
                                   std::vector<ReceiveMessage>& receives) {
  for (const StagingPiece& piece : round) {
    for (int r = 0; r < world_size(); ++r) {
      if (!IsOther(r)) continue;
      sends.push_back({r, SliceFor(parts, piece, r), piece.length});
      receives.push_back({r, ReceivedFrom(scratch, piece, r), piece.length});
    }
  }
}

const char* GlooCommunicator::SliceFor(std::span<const ReduceMemory> parts,
                                       const StagingPiece& piece, int r) {
  const ReduceMemory& part = parts[piece.part];
  return Bytes(part.whole) + r * part.part_elements * ElementBytes(part.dtype) +
         piece.begin;
}

char* GlooCommunicator::ReceivedFrom(char* scratch, const StagingPiece& piece,
                                     int r) {
  return scratch + piece.staging_offset + r * RoundUpStaging(piece.length);
}

void GlooCommunicator::SumRound(std::span<const ReduceMemory> parts,
                                const Reduction& reduction,
                                const StagingRound& round, char* scratch) {
  std::vector<const void*> inputs(world_size());
  for (const StagingPiece& piece : round) {
    const ReduceMemory& part = parts[piece.part];
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = IsOther(r) ? ReceivedFrom(scratch, piece, r)
                             : SliceFor(parts, piece, r);
    }
    const int64_t begin = piece.begin / ElementBytes(part.dtype);
    ReduceTree(
        {.inputs = inputs,
         .dtype = part.dtype,
         .num_elements = piece.length / ElementBytes(part.dtype),
         .output = Bytes(part.shard) + begin * ElementBytes(part.shard_dtype),
         .output_dtype = part.shard_dtype,
         .accumulate = part.accumulate,
         .reduction = reduction});
  }
}

absl::Status GlooCommunicator::RunReduceScatter(
    const CollectiveHeader& header, std::span<const ReduceMemory> parts,
    const Reduction& reduction, std::span<uint8_t> flags) {
  if (flags.size() > GlooGreeting::kSmallBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most ", GlooGreeting::kSmallBytes, " flags, got ",
                     flags.size(), "; use smaller units"));
  }
  std::vector<int64_t> part_bytes;
  for (const ReduceMemory& part : parts) {
    part_bytes.push_back(part.part_elements * ElementBytes(part.dtype));
  }
  const int64_t capacity = ScratchFor(part_bytes, world_size());
  std::unique_ptr<GlooScratch> scratch;
  const absl::Status room =
      Try([&] { scratch = std::make_unique<GlooScratch>(capacity); });
  const std::vector<StagingRound> rounds =
      PlanStaging(part_bytes, world_size(), capacity);
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  if (room.ok() && !rounds.empty()) {
    AddMessages(parts, rounds[0], scratch->data(), sends, receives);
    RETURN_IF_ERROR(mesh_->Expect(receives));
    receives.clear();
  }
  RETURN_IF_ERROR(Meet(header, std::string(flags.begin(), flags.end()), room));
  for (int r = 0; r < world_size(); ++r) {
    for (size_t i = 0; i < flags.size(); ++i) {
      flags[i] =
          std::max(flags[i], static_cast<uint8_t>(GreetingOf(r).small[i]));
    }
  }
  for (const StagingRound& round : rounds) {
    if (sends.empty()) {
      AddMessages(parts, round, scratch->data(), sends, receives);
    }
    RETURN_IF_ERROR(mesh_->Exchange(Describe(header), sends, receives));
    SumRound(parts, reduction, round, scratch->data());
    sends.clear();
    receives.clear();
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::RunAllocateBuffer(
    const CollectiveHeader& header, const BufferRequest& request,
    absl::StatusOr<CommBuffer>& buffer) {
  buffer = AllocatePrivateBuffer(request);
  std::string mine;
  if (!buffer.ok()) {
    mine = absl::StrCat(" ", buffer.status().message());
    mine.resize(std::min<size_t>(mine.size(), GlooGreeting::kSmallBytes));
    mine[0] = static_cast<char>(buffer.status().code());
  }
  RETURN_IF_ERROR(Meet(header, mine));
  for (int r = 0; r < world_size(); ++r) {
    const GlooGreeting& theirs = GreetingOf(r);
    if (theirs.num_small == 0) continue;
    buffer = absl::Status(
        static_cast<absl::StatusCode>(theirs.small[0]),
        absl::StrCat(group().RankName(r), ": ",
                     std::string(theirs.small + 1, theirs.num_small - 1)));
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Communicator>> MakeGlooCommunicator(
    std::shared_ptr<Store> store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait, MakeGroup make_group) {
  StoreMeeting meeting(*store, group, id);
  absl::StatusOr<std::unique_ptr<GlooMesh>> mesh =
      GlooMesh::Connect(store, group, id, wait, sizeof(GlooGreeting));
  // Nobody may let go of the group while others still connect to it.
  RETURN_IF_ERROR(meeting.Agree("connected", mesh.status()));
  auto communicator = std::make_shared<GlooCommunicator>(
      std::move(store), id, group, wait, *std::move(mesh),
      std::move(make_group));
  communicator->Listen();
  return std::shared_ptr<Communicator>(std::move(communicator));
}

}  // namespace tessera
