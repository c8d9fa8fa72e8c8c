#include "fsdp/comm/shared_memory_communicator.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/comm/memory_file.h"
#include "fsdp/comm/store_meeting.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Two halves of 256 KiB: what passes through stays in the second-level cache.
constexpr int64_t kStagingBytes = 512 << 10;
constexpr int64_t kPageBytes = 4096;

int64_t RoundUpToPage(int64_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// One AllocateBuffer. The rank's own mapping is mappings[rank]; common memory
// has that one only. The storage of the buffer owns it.
struct Segment {
  std::vector<std::unique_ptr<MemoryMapping>> mappings;
  bool common = false;
  Device device;
  int64_t counted_bytes = 0;
  MemoryCategory category = MemoryCategory::kUnsharded;

  ~Segment() { AllocatorOf(device).UncountExternal(counted_bytes, category); }
};

// Control block and staging buffers of the group are in one file, rank 0's.
class ProcessPeerMemory final : public PeerMemory {
 public:
  ProcessPeerMemory(int rank, int world_size,
                    std::unique_ptr<MemoryMapping> shared)
      : rank_(rank), world_size_(world_size), shared_(std::move(shared)) {}

  static int64_t FileBytes(int world_size) {
    return ControlBytes(world_size) + world_size * kStagingBytes;
  }

  PartRef Export(const void* data, int64_t num_bytes) const override {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < segments_.size(); ++i) {
      const std::shared_ptr<Segment> segment = segments_[i].lock();
      if (segment == nullptr) continue;
      const MemoryMapping& mine = *segment->mappings[rank_];
      if (!mine.Contains(data, num_bytes)) continue;
      return PartRef{
          static_cast<int32_t>(i), segment->common ? 1 : 0,
          static_cast<uint64_t>(static_cast<const char*>(data) - mine.data())};
    }
    return PartRef{};
  }

  const void* Import(int rank, const PartRef& ref) const override {
    std::lock_guard lock(mutex_);
    const std::shared_ptr<Segment> segment = segments_[ref.segment].lock();
    TESSERA_CHECK(segment != nullptr);
    const int owner = segment->common ? rank_ : rank;
    return segment->mappings[owner]->data() + ref.offset;
  }

  void* Staging(int rank) const override {
    return shared_->data() + ControlBytes(world_size_) + rank * kStagingBytes;
  }
  int64_t staging_bytes() const override { return kStagingBytes; }

  void AddSegment(const std::weak_ptr<Segment>& segment) {
    std::lock_guard lock(mutex_);
    segments_.push_back(segment);
  }

 private:
  static int64_t ControlBytes(int world_size) {
    return RoundUpToPage(SharedControl::NumBytes(world_size));
  }

  const int rank_;
  const int world_size_;
  const std::unique_ptr<MemoryMapping> shared_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Segment>> segments_;  // The same on all ranks.
};

class SharedMemoryCommunicator final : public LocalCommunicator {
 public:
  SharedMemoryCommunicator(std::shared_ptr<Store> store, std::string id,
                           const CommunicatorGroup& group,
                           const WaitOptions& wait,
                           std::unique_ptr<SharedControl> control,
                           std::unique_ptr<ProcessPeerMemory> peers)
      : LocalCommunicator(group, wait, std::move(control), std::move(peers)),
        store_(std::move(store)),
        id_(std::move(id)) {}

  ~SharedMemoryCommunicator() override { store_->RemoveListener(listener_); }

  const char* name() const override { return "shared_memory"; }

  // News of dead ranks end all waits.
  void Listen() {
    listener_ = store_->AddListener([this](const StoreNews& news) {
      if (news.channel.empty()) Stop(news.status, news.status);
    });
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& members, const std::string& group_name) override {
    RETURN_IF_ERROR(AgreeOnSplit(*this, members, group_name));
    const std::string id =
        absl::StrCat(id_, "/", num_splits_++, ".", members[0]);
    return MakeSharedMemoryCommunicator(
        store_, MakeSubgroup(group(), members, group_name), id, wait());
  }

 protected:
  absl::Status RunAllocateBuffer(const CollectiveHeader& header,
                                 const BufferRequest& request,
                                 absl::StatusOr<CommBuffer>& buffer) override;

  // Through the store too: whoever serves it learns whose error was first.
  void AbortWaits(const absl::Status& status) override {
    store_->Abort(status, id_);
    LocalCommunicator::AbortWaits(status);
  }

 private:
  absl::StatusOr<std::shared_ptr<Segment>> StartSegment(
      const BufferRequest& request, int64_t file_bytes) const;
  absl::Status MapSegment(Segment& segment,
                          const std::vector<std::string>& addresses,
                          const MemoryFile* own) const;

  const std::shared_ptr<Store> store_;
  const std::string id_;
  int listener_ = -1;
  int num_splits_ = 0;
};

// Counts this rank's share, and checks what all ranks take together.
absl::StatusOr<std::shared_ptr<Segment>> SharedMemoryCommunicator::StartSegment(
    const BufferRequest& request, int64_t file_bytes) const {
  auto segment = std::make_shared<Segment>();
  segment->common = request.kind == CommBufferKind::kCommon;
  segment->device = request.device;
  segment->category = request.category;
  const int64_t share =
      segment->common ? (request.num_bytes + world_size() - 1) / world_size()
                      : RoundUpAllocation(request.num_bytes);
  RETURN_IF_ERROR(Try([&] {
    AllocatorOf(request.device).CountExternal(share, request.category);
  }));
  segment->counted_bytes = share;
  RETURN_IF_ERROR(
      CheckHostMemory(segment->common ? file_bytes : file_bytes * world_size(),
                      ReadHostMemory()));
  return segment;
}

absl::Status SharedMemoryCommunicator::MapSegment(
    Segment& segment, const std::vector<std::string>& addresses,
    const MemoryFile* own) const {
  segment.mappings.resize(world_size());
  if (own != nullptr) {
    ASSIGN_OR_RETURN(segment.mappings[rank()], own->Map(/*writable=*/true));
  }
  if (segment.common && own == nullptr) {
    ASSIGN_OR_RETURN(const MemoryFile file, MemoryFile::Open(addresses[0]));
    ASSIGN_OR_RETURN(segment.mappings[rank()], file.Map(/*writable=*/true));
  }
  for (int r = 0; r < world_size() && !segment.common; ++r) {
    if (r == rank()) continue;
    ASSIGN_OR_RETURN(const MemoryFile file, MemoryFile::Open(addresses[r]));
    ASSIGN_OR_RETURN(segment.mappings[r], file.Map(/*writable=*/false));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCommunicator::RunAllocateBuffer(
    const CollectiveHeader& header, const BufferRequest& request,
    absl::StatusOr<CommBuffer>& buffer) {
  const int64_t file_bytes =
      RoundUpToPage(std::max<int64_t>(request.num_bytes, 1));
  absl::StatusOr<std::shared_ptr<Segment>> segment =
      StartSegment(request, file_bytes);
  ASSIGN_OR_RETURN(absl::Status agreed, AgreeSmall(header, segment.status()));
  if (!agreed.ok()) {
    buffer = agreed;
    return absl::OkStatus();
  }
  const bool makes = !(*segment)->common || rank() == 0;
  absl::StatusOr<MemoryFile> own =
      makes ? MemoryFile::Create(file_bytes)
            : absl::StatusOr<MemoryFile>(absl::UnknownError(""));
  const absl::Status made = makes ? own.status() : absl::OkStatus();
  ASSIGN_OR_RETURN(agreed, AgreeSmall(header, made));
  if (agreed.ok()) {
    ASSIGN_OR_RETURN(
        const std::vector<std::string> addresses,
        ExchangeSmall(header, makes ? own->Address() : std::string()));
    ASSIGN_OR_RETURN(agreed,
                     AgreeSmall(header, MapSegment(**segment, addresses,
                                                   makes ? &*own : nullptr)));
  }
  if (!agreed.ok()) {
    buffer = agreed;
    return absl::OkStatus();
  }
  static_cast<ProcessPeerMemory&>(peers()).AddSegment(*segment);
  buffer = CommBuffer{
      Storage::Borrowed(request.device, (*segment)->mappings[rank()]->data(),
                        request.num_bytes, *segment),
      (*segment)->common};
  return absl::OkStatus();
}

// Rank 0 makes the file, the others open it, and all wait for all.
absl::StatusOr<std::unique_ptr<MemoryMapping>> ShareFile(
    StoreMeeting& meeting, const CommunicatorGroup& group) {
  const int64_t file_bytes = ProcessPeerMemory::FileBytes(group.size());
  absl::StatusOr<MemoryFile> file = absl::UnknownError("");
  absl::Status status;
  if (group.rank == 0) {
    status = CheckHostMemory(file_bytes, ReadHostMemory());
    if (status.ok()) {
      file = MemoryFile::Create(file_bytes);
      status = file.status();
    }
  }
  ASSIGN_OR_RETURN(
      const std::vector<std::string> addresses,
      meeting.Exchange("file",
                       status.ok() && group.rank == 0 ? file->Address() : ""));
  RETURN_IF_ERROR(meeting.Agree("made", status));
  if (group.rank != 0) {
    file = MemoryFile::Open(addresses[0]);
    status = file.status();
  }
  std::unique_ptr<MemoryMapping> mapping;
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<MemoryMapping>> mapped = file->Map(true);
    status = mapped.status();
    if (mapped.ok()) mapping = *std::move(mapped);
  }
  RETURN_IF_ERROR(meeting.Agree("opened", status));
  return mapping;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> MakeSharedMemoryCommunicator(
    std::shared_ptr<Store> store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait) {
  StoreMeeting meeting(*store, group, id);
  ASSIGN_OR_RETURN(std::unique_ptr<MemoryMapping> mapping,
                   ShareFile(meeting, group));
  auto control = std::make_unique<SharedControl>(mapping->data(), group, wait,
                                                 FitsCores(group.size()));
  auto peers = std::make_unique<ProcessPeerMemory>(group.rank, group.size(),
                                                   std::move(mapping));
  auto communicator = std::make_shared<SharedMemoryCommunicator>(
      std::move(store), id, group, wait, std::move(control), std::move(peers));
  communicator->Listen();
  return std::shared_ptr<Communicator>(std::move(communicator));
}

}  // namespace tessera
