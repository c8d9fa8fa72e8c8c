#include "fsdp/comm/thread_communicator.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/comm/local_communicator.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Only what is small, or has too many parts to be posted, goes through it.
constexpr int64_t kStagingBytes = 128 << 10;
constexpr int64_t kAlignment = 64;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using ZeroedMemory = std::unique_ptr<void, FreeMemory>;

ZeroedMemory AllocateZeroed(int64_t num_bytes) {
  const int64_t rounded =
      (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  ZeroedMemory memory(std::aligned_alloc(kAlignment, rounded));
  TESSERA_CHECK(memory != nullptr);
  std::memset(memory.get(), 0, rounded);
  return memory;
}

// What the ranks of a group share: it lives as long as one of them does.
class ThreadGroup {
 public:
  explicit ThreadGroup(int world_size)
      : control_(AllocateZeroed(SharedControl::NumBytes(world_size))),
        staging_(AllocateZeroed(kStagingBytes * world_size)) {}

  void* control() const { return control_.get(); }
  void* Staging(int rank) const {
    return static_cast<char*>(staging_.get()) + rank * kStagingBytes;
  }

  // The same group for all who name the same key; the first one makes it.
  std::shared_ptr<ThreadGroup> Child(const std::string& key, int world_size) {
    std::lock_guard lock(mutex_);
    std::weak_ptr<ThreadGroup>& child = children_[key];
    std::shared_ptr<ThreadGroup> group = child.lock();
    if (group == nullptr) {
      group = std::make_shared<ThreadGroup>(world_size);
      child = group;
    }
    return group;
  }

 private:
  ZeroedMemory control_;
  ZeroedMemory staging_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ThreadGroup>> children_;
};

// Threads see each other's memory as it is.
class ThreadPeerMemory final : public PeerMemory {
 public:
  explicit ThreadPeerMemory(const std::shared_ptr<ThreadGroup>& group)
      : group_(group) {}

  PartRef Export(const void* data, int64_t) const override {
    return PartRef{0, 0, reinterpret_cast<uint64_t>(data)};
  }
  const void* Import(int, const PartRef& ref) const override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer in Export.
    return reinterpret_cast<const void*>(ref.offset);
  }
  void* Staging(int rank) const override { return group_->Staging(rank); }
  int64_t staging_bytes() const override { return kStagingBytes; }

 private:
  std::shared_ptr<ThreadGroup> group_;
};

class ThreadCommunicator final : public LocalCommunicator {
 public:
  ThreadCommunicator(const CommunicatorGroup& group, const WaitOptions& wait,
                     const std::shared_ptr<ThreadGroup>& shared)
      : LocalCommunicator(
            group, wait,
            std::make_unique<SharedControl>(shared->control(), group, wait,
                                            FitsCores(group.size())),
            std::make_unique<ThreadPeerMemory>(shared)),
        shared_(shared) {}

  const char* name() const override { return "thread"; }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& members, const std::string& group_name) override {
    RETURN_IF_ERROR(AgreeOnSplit(*this, members, group_name));
    const std::string key =
        absl::StrCat(num_splits_++, " ", absl::StrJoin(members, ","));
    const auto child = shared_->Child(key, static_cast<int>(members.size()));
    std::shared_ptr<Communicator> communicator =
        std::make_shared<ThreadCommunicator>(
            MakeSubgroup(group(), members, group_name), wait(), child);
    // Nobody may leave before all have found the group.
    RETURN_IF_ERROR(AgreeOnStatus(absl::OkStatus(), "Split"));
    return communicator;
  }

 protected:
  absl::Status RunAllocateBuffer(const CollectiveHeader& header,
                                 const BufferRequest& request,
                                 absl::StatusOr<CommBuffer>& buffer) override {
    buffer = AllocatePrivateBuffer(request);
    ASSIGN_OR_RETURN(const absl::Status agreed,
                     AgreeSmall(header, buffer.status()));
    if (!agreed.ok()) buffer = agreed;
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<ThreadGroup> shared_;
  int num_splits_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> MakeThreadCommunicators(
    int world_size, const WaitOptions& wait) {
  TESSERA_CHECK(world_size > 0);
  const auto shared = std::make_shared<ThreadGroup>(world_size);
  std::vector<std::shared_ptr<Communicator>> communicators;
  communicators.reserve(world_size);
  for (int r = 0; r < world_size; ++r) {
    communicators.push_back(std::make_shared<ThreadCommunicator>(
        CommunicatorGroup::World(r, world_size), wait, shared));
  }
  return communicators;
}

}  // namespace tessera
