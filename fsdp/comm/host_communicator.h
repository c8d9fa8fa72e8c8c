// What all communicators of host memory share: they check a call, give it its
// place in the order, queue it on a stream, and end it well or badly. How the
// bytes move is the subclass's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/comm/collective_header.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// How long a rank that lives, but is late, is waited for; and after how long
// the log says so.
struct WaitOptions {
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration warn_after = absl::Seconds(30);
};

// The parts of a collective with their addresses.
struct GatherMemory {
  const void* shard;
  void* whole;
  int64_t part_bytes;
};
struct ReduceMemory {
  const void* whole;
  void* shard;
  int64_t part_elements;
  DType dtype;
  DType shard_dtype;
  bool accumulate;
};
struct TensorMemory {
  void* data;
  int64_t num_elements;
  DType dtype;

  int64_t num_bytes() const { return num_elements * ElementBytes(dtype); }
};

struct BufferRequest {
  Device device;
  int64_t num_bytes = 0;
  CommBufferKind kind = CommBufferKind::kPeer;
  MemoryCategory category = MemoryCategory::kUnsharded;
};

// Zeroed memory of this rank's allocator.
absl::StatusOr<CommBuffer> AllocatePrivateBuffer(const BufferRequest& request);

// [Note: collectives run by number]
// A collective takes its number when it is called, on the one thread that may
// call, and runs when all with smaller numbers have run, even where it was
// queued on another stream. So all ranks run the same collectives in the same
// order without the streams knowing of each other. What a collective waits for
// was queued before it, hence nothing waits in a circle. One that is dropped,
// because its stream has failed, aborts the communicator: the others would wait
// for it. Only where the stream lacked memory they do wait, until this rank
// calls FailTogether; all that this rank has queued fails meanwhile.
//
// Lives until the last queued collective has run, so make it by make_shared.
class HostCommunicator : public Communicator,
                         public std::enable_shared_from_this<HostCommunicator> {
 public:
  int rank() const final { return group_.rank; }
  int world_size() const final { return group_.size(); }

  absl::Status AllGather(std::span<const GatherPart> parts, Stream& stream,
                         std::string_view what) final;
  absl::Status ReduceScatter(std::span<const ReducePart> parts,
                             const Reduction& reduction, const Tensor& flags,
                             Stream& stream, std::string_view what) final;
  absl::Status AllReduce(std::span<const Tensor> tensors,
                         const Reduction& reduction, Stream& stream,
                         std::string_view what) final;
  absl::Status Broadcast(std::span<const Tensor> tensors, int root,
                         Stream& stream, std::string_view what) final;
  absl::Status Barrier(Stream& stream, std::string_view what) final;
  absl::StatusOr<CommBuffer> AllocateBuffer(Device device, int64_t num_bytes,
                                            CommBufferKind kind,
                                            MemoryCategory category) final;
  void Abort(const absl::Status& status) final;
  absl::Status FailTogether(const absl::Status& status) final;

  const CommunicatorGroup& group() const { return group_; }

 protected:
  HostCommunicator(CommunicatorGroup group, const WaitOptions& wait)
      : group_(std::move(group)), wait_(wait) {}

  const WaitOptions& wait() const { return wait_; }
  // Why the communicator was aborted, or OK.
  absl::Status abort_status() const;

  // Whether all ranks see these bytes as one memory.
  virtual bool IsCommon(const Tensor& /*tensor*/) const { return false; }
  // One at a time, in the order of their numbers, on the thread of the stream.
  // All begin by comparing headers. Errors need not name operation or rank.
  virtual absl::Status RunAllGather(const CollectiveHeader& header,
                                    std::span<const GatherMemory> parts) = 0;
  // `flags` become their maximum over ranks.
  virtual absl::Status RunReduceScatter(const CollectiveHeader& header,
                                        std::span<const ReduceMemory> parts,
                                        const Reduction& reduction,
                                        std::span<uint8_t> flags) = 0;
  virtual absl::Status RunAllReduce(const CollectiveHeader& header,
                                    std::span<const TensorMemory> tensors,
                                    const Reduction& reduction) = 0;
  virtual absl::Status RunBroadcast(const CollectiveHeader& header,
                                    std::span<const TensorMemory> tensors,
                                    int root) = 0;
  virtual absl::Status RunBarrier(const CollectiveHeader& header) = 0;
  // `buffer` is the same error on all ranks when one has no memory; the result
  // is an error when the ranks could not agree on that.
  virtual absl::Status RunAllocateBuffer(
      const CollectiveHeader& header, const BufferRequest& request,
      absl::StatusOr<CommBuffer>& buffer) = 0;
  // Takes part in the exchange of headers, as a rank that cannot go on: the
  // status that CompareWords gave.
  virtual absl::Status RunFailTogether(const CollectiveHeader& header,
                                       const absl::Status& status) = 0;

  // What a rank has said at the start of a collective.
  struct RankWord {
    const CollectiveHeader* header = nullptr;
    std::string reason;  // Why it cannot take part, if so.
  };
  // By rank. OK when all run the same and can; when one cannot, this is what
  // all ranks fail with, see [Note: failing together].
  absl::Status CompareWords(std::span<const RankWord> words);

  // Ends all waits: this rank's with `status`, the others' with `tell_others`.
  void Stop(const absl::Status& status, const absl::Status& tell_others);
  // Ends the waits for a turn only; the subclass ends its own.
  void StopWithoutTelling(const absl::Status& status);
  // Ends what this rank waits for, and tells the other ranks. Any thread.
  virtual void AbortWaits(const absl::Status& status) = 0;

 private:
  class Ticket;

  // With the next number, which Submit takes.
  // Not where all shards lie in common memory, each at its place in the whole.
  bool MovesBytes(const GatherPart& part) const;
  CollectiveHeader MakeHeader(Operation operation, std::string_view what) const;
  absl::Status Submit(const CollectiveHeader& header, Stream& stream,
                      AccessList access, std::function<absl::Status()> run);
  // Waits for the number's turn, runs, and says what went wrong where.
  absl::Status RunInTurn(const CollectiveHeader& header,
                         const std::function<absl::Status()>& run);
  absl::Status WaitForTurn(uint64_t sequence);
  absl::Status StatusLocked() const;  // Why nothing runs now, or OK.
  absl::Status status() const;
  bool failed_together() const;
  void Dropped(const CollectiveHeader& header, const absl::Status& cause);
  absl::Status CheckTensor(const Tensor& tensor, const char* operation,
                           std::string_view what) const;
  std::string Context(const CollectiveHeader& header) const;

  const CommunicatorGroup group_;
  const WaitOptions wait_;
  uint64_t next_sequence_ = 0;  // Of the calling thread.
  mutable std::mutex mutex_;
  std::condition_variable turn_changed_;
  uint64_t turn_ = 0;  // The number that may run.
  absl::Status abort_status_;
  // Until FailTogether: why nothing runs, and whether all ranks know it.
  absl::Status failure_;
  bool failed_together_ = false;
};

// What a group of ranks that was asked for by Split must be.
absl::Status CheckSplitGroup(const std::vector<int>& group, int rank,
                             int world_size, const std::string& group_name);

// Compares what all ranks of `parent` ask for: the members of a group must ask
// for the same group. Collective; the same answer on all ranks.
absl::Status AgreeOnSplit(Communicator& parent, const std::vector<int>& group,
                          const std::string& group_name);

}  // namespace tessera
