// The collectives of ranks that exchange messages through gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/gloo_communicator.h"
#include "fsdp/comm/gloo_mesh.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/staging_plan.h"
#include "fsdp/comm/store.h"
#include "runtime/device/allocator.h"

namespace tessera {

// What each rank sends to all others at the start of a collective.
struct GlooGreeting {
  // What is no longer than this travels with the greeting.
  static constexpr int64_t kSmallBytes = 2048;

  CollectiveHeader header;
  int64_t num_small = 0;
  // Flags, short tensors, or why the rank cannot take part.
  alignas(16) char small[kSmallBytes];
};

// Memory of the current device's allocator for the length of a collective.
class GlooScratch {
 public:
  // Throws when there is none.
  explicit GlooScratch(int64_t num_bytes)
      : allocator_(AllocatorOf(CurrentDevice())),
        data_(static_cast<char*>(allocator_.Allocate(num_bytes))) {}
  ~GlooScratch() { allocator_.Free(data_); }
  GlooScratch(const GlooScratch&) = delete;
  GlooScratch& operator=(const GlooScratch&) = delete;

  char* data() const { return data_; }

 private:
  Allocator& allocator_;
  char* const data_;
};

// [Note: phases over TCP]
// Every collective begins with an exchange of greetings, so that sizes are
// known to agree, and all ranks to have the memory, before data moves; what is
// short travels in them. Then a reduction is an exchange of slices, each rank
// getting its own of everybody's, and the sum along the tree on the spot.
class GlooCommunicator final : public HostCommunicator {
 public:
  // `mesh` carries greetings of sizeof(GlooGreeting). `make_group` may be null.
  GlooCommunicator(std::shared_ptr<Store> store, std::string id,
                   const CommunicatorGroup& group, const WaitOptions& wait,
                   std::unique_ptr<GlooMesh> mesh, MakeGroup make_group)
      : HostCommunicator(group, wait),
        store_(std::move(store)),
        id_(std::move(id)),
        mesh_(std::move(mesh)),
        make_group_(std::move(make_group)) {}
  ~GlooCommunicator() override { store_->RemoveListener(listener_); }

  const char* name() const override { return "gloo"; }
  // News of dead ranks, and of aborts of this communicator, end all waits.
  void Listen();
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& members, const std::string& group_name) override;

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
  absl::Status RunFailTogether(const CollectiveHeader& header,
                               const absl::Status& status) override {
    return Meet(header, "", status);
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

  bool IsOther(int r) const { return r != rank(); }
  // Sends `small`, at most kSmallBytes, or why this rank cannot take part.
  absl::Status Meet(const CollectiveHeader& header,
                    const std::string& small = "",
                    const absl::Status& status = absl::OkStatus());
  // What rank r sent with the last Meet.
  const GlooGreeting& GreetingOf(int r) const {
    return *reinterpret_cast<const GlooGreeting*>(mesh_->greeting(r));
  }
  // Where the pieces lie in a greeting, or nothing when they do not fit.
  static std::optional<StagingRound> PlanGreeting(
      std::span<const int64_t> piece_bytes);

  absl::Status GatherInGreetings(const CollectiveHeader& header,
                                 std::span<const GatherMemory> parts,
                                 const StagingRound& plan);
  // Of a reduction's round: what goes to the other ranks, and where theirs go.
  void AddMessages(std::span<const ReduceMemory> parts,
                   const StagingRound& round, char* scratch,
                   std::vector<SendMessage>& sends,
                   std::vector<ReceiveMessage>& receives);
  static const char* SliceFor(std::span<const ReduceMemory> parts,
                              const StagingPiece& piece, int r);
  static char* ReceivedFrom(char* scratch, const StagingPiece& piece, int r);
  void SumRound(std::span<const ReduceMemory> parts, const Reduction& reduction,
                const StagingRound& round, char* scratch);

  absl::Status ReduceInGreetings(const CollectiveHeader& header,
                                 std::span<const TensorMemory> tensors,
                                 const Reduction& reduction,
                                 const StagingRound& plan);
  absl::Status BroadcastInGreetings(const CollectiveHeader& header,
                                    std::span<const TensorMemory> tensors,
                                    int root, const StagingRound& plan);
  std::vector<ReceiveMessage> WholeFromOthers(const TensorMemory& tensor,
                                              char* scratch) const;
  // `receives` are those, or none when they are expected.
  absl::Status ReduceWhole(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction, char* scratch,
                           std::span<const ReceiveMessage> receives);
  absl::Status ReduceLarge(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction, char* scratch);
  absl::Status ReduceSlice(const CollectiveHeader& header,
                           const TensorMemory& tensor,
                           const Reduction& reduction, const SliceRange& range);

  const std::shared_ptr<Store> store_;
  const std::string id_;
  const std::unique_ptr<GlooMesh> mesh_;
  const MakeGroup make_group_;
  int listener_ = -1;
  int num_splits_ = 0;
};

}  // namespace tessera
