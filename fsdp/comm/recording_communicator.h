// A communicator that writes down what it is asked to do, and lets another do
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/comm/collective_header.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// One call; a group of parts is one entry.
struct RecordedCollective {
  Operation operation = Operation::kBarrier;
  std::string what;
  std::string group;      // Empty for the communicator that was wrapped.
  int64_t num_bytes = 0;  // Of the whole tensors.
  int num_parts = 0;
  uint64_t sequence = 0;  // Of all calls of this recording.

  // "AllGather h.0"
  std::string ToString() const;
};

// Shared by a recording communicator and all that are split from it.
// Thread-safe.
class CollectiveRecording {
 public:
  std::vector<RecordedCollective> entries() const;
  // ToString of each entry.
  std::vector<std::string> Lines() const;
  void Clear();
  void Add(RecordedCollective entry);

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCollective> entries_;
  uint64_t next_sequence_ = 0;
};

// Everything else goes to `inner` as it is. AllGatherBytes and AllocateBuffer
// are not recorded.
class RecordingCommunicator final : public Communicator {
 public:
  explicit RecordingCommunicator(
      std::shared_ptr<Communicator> inner,
      std::shared_ptr<CollectiveRecording> recording =
          std::make_shared<CollectiveRecording>(),
      std::string group = "")
      : inner_(std::move(inner)),
        recording_(std::move(recording)),
        group_(std::move(group)) {}

  CollectiveRecording& recording() const { return *recording_; }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  const char* name() const override { return inner_->name(); }

  absl::Status AllGather(std::span<const GatherPart> parts, Stream& stream,
                         std::string_view what) override;
  absl::Status ReduceScatter(std::span<const ReducePart> parts,
                             const Reduction& reduction, const Tensor& flags,
                             Stream& stream, std::string_view what) override;
  absl::Status AllReduce(std::span<const Tensor> tensors,
                         const Reduction& reduction, Stream& stream,
                         std::string_view what) override;
  absl::Status Broadcast(std::span<const Tensor> tensors, int root,
                         Stream& stream, std::string_view what) override;
  absl::Status Barrier(Stream& stream, std::string_view what) override;
  absl::StatusOr<CommBuffer> AllocateBuffer(Device device, int64_t num_bytes,
                                            CommBufferKind kind,
                                            MemoryCategory category) override {
    return inner_->AllocateBuffer(device, num_bytes, kind, category);
  }
  void Abort(const absl::Status& status) override { inner_->Abort(status); }
  absl::Status FailTogether(const absl::Status& status) override {
    return inner_->FailTogether(status);
  }
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(
      const std::string& value, std::string_view what) override {
    return inner_->AllGatherBytes(value, what);
  }
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& group, const std::string& group_name) override;

 private:
  void Record(Operation operation, std::string_view what, size_t num_parts,
              int64_t num_bytes) const;

  const std::shared_ptr<Communicator> inner_;
  const std::shared_ptr<CollectiveRecording> recording_;
  const std::string group_;
};

}  // namespace tessera
