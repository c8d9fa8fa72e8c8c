// A communicator that starts every collective late, by a random time.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "tests/testing/random_tensors.h"

namespace tessera {

// Sleeps on the stream, before and after each collective of `inner`, up to
// `longest`: what relies on the order of time and not on events goes wrong.
class DelayingCommunicator final : public Communicator {
 public:
  DelayingCommunicator(std::shared_ptr<Communicator> inner,
                       absl::Duration longest, uint64_t seed)
      : inner_(std::move(inner)), longest_(longest), seed_(seed) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  const char* name() const override { return inner_->name(); }

  absl::Status AllGather(std::span<const GatherPart> parts, Stream& stream,
                         std::string_view what) override {
    Delay(stream);
    absl::Status status = inner_->AllGather(parts, stream, what);
    Delay(stream);
    return status;
  }
  absl::Status ReduceScatter(std::span<const ReducePart> parts,
                             const Reduction& reduction, const Tensor& flags,
                             Stream& stream, std::string_view what) override {
    Delay(stream);
    absl::Status status =
        inner_->ReduceScatter(parts, reduction, flags, stream, what);
    Delay(stream);
    return status;
  }
  absl::Status AllReduce(std::span<const Tensor> tensors,
                         const Reduction& reduction, Stream& stream,
                         std::string_view what) override {
    Delay(stream);
    absl::Status status = inner_->AllReduce(tensors, reduction, stream, what);
    Delay(stream);
    return status;
  }
  absl::Status Broadcast(std::span<const Tensor> tensors, int root,
                         Stream& stream, std::string_view what) override {
    Delay(stream);
    return inner_->Broadcast(tensors, root, stream, what);
  }
  absl::Status Barrier(Stream& stream, std::string_view what) override {
    return inner_->Barrier(stream, what);
  }
  absl::StatusOr<CommBuffer> AllocateBuffer(Device device, int64_t num_bytes,
                                            CommBufferKind kind,
                                            MemoryCategory category) override {
    return inner_->AllocateBuffer(device, num_bytes, kind, category);
  }
  void Abort(const absl::Status& status) override { inner_->Abort(status); }
  absl::Status FailTogether(const absl::Status& status) override {
    return inner_->FailTogether(status);
  }
  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& group, const std::string& group_name) override {
    absl::StatusOr<std::shared_ptr<Communicator>> part =
        inner_->Split(group, group_name);
    if (!part.ok()) return part;
    return std::make_shared<DelayingCommunicator>(*part, longest_, seed_ + 1);
  }

 private:
  void Delay(Stream& stream) {
    const double share =
        static_cast<double>(MixedWord(seed_, 100 * count_++ + rank()) >> 11) *
        0x1p-53;
    const absl::Duration pause = longest_ * share;
    stream.Enqueue("Delay", [pause] { absl::SleepFor(pause); });
  }

  const std::shared_ptr<Communicator> inner_;
  const absl::Duration longest_;
  const uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace tessera
