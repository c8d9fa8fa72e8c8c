// One rank of a world of any size, alone: nothing is sent. To plan, and to
// measure what one rank of many would allocate and compute.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace tessera {

struct FakeOptions {
  int rank = 0;
  int world_size = 1;
  // Common buffers count as this rank's share, as where ranks share memory;
  // else they are private ones.
  bool common_buffers = false;
};

// An all-gather puts this rank's shard in its place and leaves the rest as it
// is; a reduction is over this rank alone. Tensors may be on the meta device.
// AllGatherBytes gives every rank this rank's value.
class FakeCommunicator : public Communicator {
 public:
  explicit FakeCommunicator(const FakeOptions& options) : options_(options) {}

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  const char* name() const override { return "fake"; }

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
                                            MemoryCategory category) override;
  void Abort(const absl::Status& status) override;
  absl::Status FailTogether(const absl::Status& status) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(
      const std::string& value, std::string_view what) override;
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& group, const std::string& group_name) override;

 private:
  absl::Status abort_status() const;

  const FakeOptions options_;
  mutable std::mutex mutex_;
  absl::Status abort_status_;
};

}  // namespace tessera
