#include "fsdp/comm/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/byte_copy.h"
#include "fsdp/comm/gloo_mesh.h"
#include "fsdp/comm/reduce_tree.h"
#include "fsdp/comm/staging_plan.h"
#include "fsdp/comm/store_meeting.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"

namespace tessera {
namespace {

// What is received before it is summed passes through this much memory.
constexpr int64_t kScratchBytes = 4 << 20;
// All-reduces up to this size are summed by every rank.
constexpr int64_t kSmallReduceBytes = 32 << 10;
constexpr int64_t kStatusBytes = 2048;

// Counted by the current device's allocator.
class Scratch {
 public:
  explicit Scratch(int64_t num_bytes)
      : allocator_(AllocatorOf(CurrentDevice())),
        data_(allocator_.Allocate(num_bytes)) {}
  ~Scratch() { allocator_.Free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() const { return Bytes(data_); }

 private:
  Allocator& allocator_;
  void* const data_;
};

// [Note: phases over TCP]
// Every collective begins with an exchange of headers, so that sizes are known
// to agree before data moves. Then a reduction is an exchange of slices, each
// rank getting its own of everybody's, and the sum along the tree on the spot.
class GlooCommunicator final : public HostCommunicator {
 public:
  GlooCommunicator(std::shared_ptr<Store> store, std::string id,
                   const CommunicatorGroup& group, const WaitOptions& wait,
                   std::unique_ptr<GlooMesh> mesh)
      : HostCommunicator(group, wait),
        store_(std::move(store)),
        id_(std::move(id)),
        mesh_(std::move(mesh)) {}

  ~GlooCommunicator() override { store_->RemoveListener(listener_); }

  const char* name() const override { return "gloo"; }

  void Listen() {
    const std::weak_ptr<HostCommunicator> self = weak_from_this();
    listener_ = store_->AddListener([self, id = id_](const StoreNews& news) {
      const auto communicator =
          std::static_pointer_cast<GlooCommunicator>(self.lock());
      if (communicator == nullptr) return;
      if (news.channel.empty() || news.channel == id) {
        communicator->StopLocally(news.status);
      }
    });
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& members, const std::string& group_name) override {
    RETURN_IF_ERROR(AgreeOnSplit(*this, members, group_name));
    const std::string id =
        absl::StrCat(id_, "/", num_splits_++, ".", members[0]);
    return MakeGlooCommunicator(
        store_, MakeSubgroup(group(), members, group_name), id, wait());
  }

 protected:
  absl::Status RunAllGather(const CollectiveHeader& header,
                            std::span<const GatherMemory> parts) override;
  absl::Status RunReduceScatter(const CollectiveHeader& header,
                                std::span<const ReduceMemory> parts,
                                const Reduction& reduction,
                                std::span<uint8_t> flags) override;
  absl::Status RunAllReduce(const CollectiveHeader& header,
                            std::span<const TensorMemory> tensors,
                            const Reduction& reduction) override;
  absl::Status RunBroadcast(const CollectiveHeader& header,
                            std::span<const TensorMemory> tensors,
                            int root) override;
  absl::Status RunBarrier(const CollectiveHeader& header) override {
    return Meet(header);
  }
  absl::Status RunAllocateBuffer(const CollectiveHeader& header,
                                 const BufferRequest& request,
                                 absl::StatusOr<CommBuffer>& buffer) override;
  void AbortWaits(const absl::Status& status) override {
    store_->Abort(status, id_);
    mesh_->Abort(status);
  }

 private:
  // Of each rank's slice, at most `most` elements from `offset` on; what the
  // other ranks send is put in `scratch`.
  struct SliceRange {
    int64_t offset;
    int64_t most;
    char* scratch;
  };

  // Others know already.
  void StopLocally(const absl::Status& status) {
    StopWithoutTelling(status);
    mesh_->Abort(status);
  }

  bool IsOther(int r) const { return r != rank(); }
  absl::Status Meet(const CollectiveHeader& header);
  // `mine` of each rank, by rank, in `all`.
  absl::Status GatherBytes(const CollectiveHeader& header, const void* mine,
                           void* all, int64_t num_bytes);
  absl::Status MaximumOfFlags(const CollectiveHeader& header,
                              std::span<uint8_t> flags);
  absl::Status ReduceRound(const CollectiveHeader& header,
                           std::span<const ReduceMemory> parts,
                           const Reduction& reduction,
                           const StagingRound& round, char* scratch);
  absl::Status ReduceSmall(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction);
  absl::Status ReduceLarge(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction);
  absl::Status ReduceSlice(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction, const SliceRange& range);

  const std::shared_ptr<Store> store_;
  const std::string id_;
  const std::unique_ptr<GlooMesh> mesh_;
  int listener_ = -1;
  int num_splits_ = 0;
};

absl::Status GlooCommunicator::GatherBytes(const CollectiveHeader& header,
                                           const void* mine, void* all,
                                           int64_t num_bytes) {
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (int r = 0; r < world_size(); ++r) {
    char* place = Bytes(all) + r * num_bytes;
    if (IsOther(r)) {
      sends.push_back({r, mine, num_bytes});
      receives.push_back({r, place, num_bytes});
    } else if (place != mine && num_bytes > 0) {
      std::memcpy(place, mine, num_bytes);
    }
  }
  return mesh_->Exchange(Describe(header), sends, receives);
}

absl::Status GlooCommunicator::Meet(const CollectiveHeader& header) {
  std::vector<CollectiveHeader> headers(world_size());
  RETURN_IF_ERROR(GatherBytes(header, &header, headers.data(), sizeof(header)));
  std::vector<const CollectiveHeader*> pointers;
  pointers.reserve(headers.size());
  for (const CollectiveHeader& other : headers) pointers.push_back(&other);
  return CompareHeaders(pointers, group());
}

absl::Status GlooCommunicator::RunAllGather(
    const CollectiveHeader& header, std::span<const GatherMemory> parts) {
  RETURN_IF_ERROR(Meet(header));
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (const GatherMemory& part : parts) {
    const int64_t n = part.part_bytes;
    for (int r = 0; r < world_size(); ++r) {
      char* place = Bytes(part.whole) + r * n;
      if (IsOther(r)) {
        sends.push_back({r, part.shard, n});
        receives.push_back({r, place, n});
      } else if (place != part.shard && n > 0) {
        std::memcpy(place, part.shard, n);
      }
    }
  }
  return mesh_->Exchange(Describe(header), sends, receives);
}

absl::Status GlooCommunicator::MaximumOfFlags(const CollectiveHeader& header,
                                              std::span<uint8_t> flags) {
  if (flags.empty()) return absl::OkStatus();
  std::vector<uint8_t> all(flags.size() * world_size());
  RETURN_IF_ERROR(GatherBytes(header, flags.data(), all.data(),
                              static_cast<int64_t>(flags.size())));
  for (size_t i = 0; i < all.size(); ++i) {
    uint8_t& flag = flags[i % flags.size()];
    flag = std::max(flag, all[i]);
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ReduceRound(const CollectiveHeader& header,
                                           std::span<const ReduceMemory> parts,
                                           const Reduction& reduction,
                                           const StagingRound& round,
                                           char* scratch) {
  const auto received = [&](const StagingPiece& piece, int r) {
    return scratch + piece.staging_offset + r * RoundUpStaging(piece.length);
  };
  const auto slice = [&](const StagingPiece& piece, int r) {
    const ReduceMemory& part = parts[piece.part];
    return Bytes(part.whole) +
           r * part.part_elements * ElementBytes(part.dtype) + piece.begin;
  };
  std::vector<SendMessage> sends;
  std::vector<ReceiveMessage> receives;
  for (const StagingPiece& piece : round) {
    for (int r = 0; r < world_size(); ++r) {
      if (!IsOther(r)) continue;
      sends.push_back({r, slice(piece, r), piece.length});
      receives.push_back({r, received(piece, r), piece.length});
    }
  }
  RETURN_IF_ERROR(mesh_->Exchange(Describe(header), sends, receives));
  std::vector<const void*> inputs(world_size());
  for (const StagingPiece& piece : round) {
    const ReduceMemory& part = parts[piece.part];
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = IsOther(r) ? received(piece, r) : slice(piece, r);
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
  return absl::OkStatus();
}

absl::Status GlooCommunicator::RunReduceScatter(
    const CollectiveHeader& header, std::span<const ReduceMemory> parts,
    const Reduction& reduction, std::span<uint8_t> flags) {
  RETURN_IF_ERROR(Meet(header));
  RETURN_IF_ERROR(MaximumOfFlags(header, flags));
  std::vector<int64_t> part_bytes;
  int64_t longest = 0;
  for (const ReduceMemory& part : parts) {
    part_bytes.push_back(part.part_elements * ElementBytes(part.dtype));
    longest += RoundUpStaging(part_bytes.back()) * world_size();
  }
  const int64_t capacity = std::max(std::min(kScratchBytes, longest),
                                    world_size() * kStagingAlignment);
  const Scratch scratch(capacity);
  for (const StagingRound& round :
       PlanStaging(part_bytes, world_size(), capacity)) {
    RETURN_IF_ERROR(
        ReduceRound(header, parts, reduction, round, scratch.data()));
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ReduceSmall(const CollectiveHeader& header,
                                           const TensorMemory& tensor,
                                           const Reduction& reduction) {
  const int64_t n = tensor.num_bytes();
  const Scratch scratch(n * world_size());
  RETURN_IF_ERROR(GatherBytes(header, tensor.data, scratch.data(), n));
  std::vector<const void*> inputs(world_size());
  for (int r = 0; r < world_size(); ++r) {
    inputs[r] = scratch.data() + r * n;
  }
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
                                           const Reduction& reduction) {
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  const int64_t longest =
      SliceOfRank(tensor.num_elements, 0, world_size()).length;
  const int64_t most = std::min(
      longest,
      std::max<int64_t>(1, kScratchBytes / world_size() / element_bytes));
  const Scratch scratch(most * element_bytes * world_size());
  for (int64_t offset = 0; offset < longest; offset += most) {
    RETURN_IF_ERROR(
        ReduceSlice(header, tensor, reduction, {offset, most, scratch.data()}));
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
  RETURN_IF_ERROR(Meet(header));
  for (const TensorMemory& tensor : tensors) {
    if (tensor.num_elements == 0) continue;
    RETURN_IF_ERROR(tensor.num_bytes() <= kSmallReduceBytes
                        ? ReduceSmall(header, tensor, reduction)
                        : ReduceLarge(header, tensor, reduction));
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::RunBroadcast(
    const CollectiveHeader& header, std::span<const TensorMemory> tensors,
    int root) {
  RETURN_IF_ERROR(Meet(header));
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
  return mesh_->Exchange(Describe(header), sends, receives);
}

absl::Status GlooCommunicator::RunAllocateBuffer(
    const CollectiveHeader& header, const BufferRequest& request,
    absl::StatusOr<CommBuffer>& buffer) {
  RETURN_IF_ERROR(Meet(header));
  buffer = AllocatePrivateBuffer(request);
  std::string mine(kStatusBytes, 0);
  mine[0] = static_cast<char>(buffer.status().code());
  const std::string text(buffer.status().message());
  std::memcpy(mine.data() + 1, text.data(),
              std::min<size_t>(text.size(), kStatusBytes - 2));
  std::string all(kStatusBytes * world_size(), 0);
  RETURN_IF_ERROR(GatherBytes(header, mine.data(), all.data(), kStatusBytes));
  for (int r = 0; r < world_size(); ++r) {
    const char* theirs = all.data() + r * kStatusBytes;
    if (theirs[0] == 0) continue;
    buffer = absl::Status(
        static_cast<absl::StatusCode>(theirs[0]),
        absl::StrCat(group().RankName(r), ": ", std::string(theirs + 1)));
    break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> MakeGlooCommunicator(
    std::shared_ptr<Store> store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait) {
  StoreMeeting meeting(*store, group, id);
  absl::StatusOr<std::unique_ptr<GlooMesh>> mesh =
      GlooMesh::Connect(store, group, id, wait);
  // Nobody may let go of the group while others still connect to it.
  RETURN_IF_ERROR(meeting.Agree("connected", mesh.status()));
  auto communicator = std::make_shared<GlooCommunicator>(
      std::move(store), id, group, wait, *std::move(mesh));
  communicator->Listen();
  return std::shared_ptr<Communicator>(std::move(communicator));
}

}  // namespace tessera
