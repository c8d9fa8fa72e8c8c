#include "fsdp/comm/recording_communicator.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

int64_t TotalBytes(std::span<const Tensor> tensors) {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.num_bytes();
  return total;
}

template <typename Part>
int64_t WholeBytes(std::span<const Part> parts) {
  int64_t total = 0;
  for (const Part& part : parts) total += part.whole.num_bytes();
  return total;
}

}  // namespace

std::string RecordedCollective::ToString() const {
  return absl::StrCat(OperationName(operation), " ", what);
}

std::vector<RecordedCollective> CollectiveRecording::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<std::string> CollectiveRecording::Lines() const {
  std::vector<std::string> lines;
  for (const RecordedCollective& entry : entries()) {
    lines.push_back(entry.ToString());
  }
  return lines;
}

void CollectiveRecording::Clear() {
  std::lock_guard lock(mutex_);
  entries_.clear();
}

void CollectiveRecording::Add(RecordedCollective entry) {
  std::lock_guard lock(mutex_);
  entry.sequence = next_sequence_++;
  entries_.push_back(std::move(entry));
}

void RecordingCommunicator::Record(Operation operation, std::string_view what,
                                   size_t num_parts, int64_t num_bytes) const {
  recording_->Add({.operation = operation,
                   .what = std::string(what),
                   .group = group_,
                   .num_bytes = num_bytes,
                   .num_parts = static_cast<int>(num_parts),
                   .sequence = 0});
}

absl::Status RecordingCommunicator::AllGather(std::span<const GatherPart> parts,
                                              Stream& stream,
                                              std::string_view what) {
  Record(Operation::kAllGather, what, parts.size(), WholeBytes(parts));
  return inner_->AllGather(parts, stream, what);
}

absl::Status RecordingCommunicator::ReduceScatter(
    std::span<const ReducePart> parts, const Reduction& reduction,
    const Tensor& flags, Stream& stream, std::string_view what) {
  Record(Operation::kReduceScatter, what, parts.size(), WholeBytes(parts));
  return inner_->ReduceScatter(parts, reduction, flags, stream, what);
}

absl::Status RecordingCommunicator::AllReduce(std::span<const Tensor> tensors,
                                              const Reduction& reduction,
                                              Stream& stream,
                                              std::string_view what) {
  Record(Operation::kAllReduce, what, tensors.size(), TotalBytes(tensors));
  return inner_->AllReduce(tensors, reduction, stream, what);
}

absl::Status RecordingCommunicator::Broadcast(std::span<const Tensor> tensors,
                                              int root, Stream& stream,
                                              std::string_view what) {
  Record(Operation::kBroadcast, what, tensors.size(), TotalBytes(tensors));
  return inner_->Broadcast(tensors, root, stream, what);
}

absl::Status RecordingCommunicator::Barrier(Stream& stream,
                                            std::string_view what) {
  Record(Operation::kBarrier, what, 0, 0);
  return inner_->Barrier(stream, what);
}

absl::StatusOr<std::shared_ptr<Communicator>> RecordingCommunicator::Split(
    const std::vector<int>& group, const std::string& group_name) {
  ASSIGN_OR_RETURN(std::shared_ptr<Communicator> inner,
                   inner_->Split(group, group_name));
  return std::shared_ptr<Communicator>(std::make_shared<RecordingCommunicator>(
      std::move(inner), recording_, group_name));
}

}  // namespace tessera
