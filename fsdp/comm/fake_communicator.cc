#include "fsdp/comm/fake_communicator.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/reduce_tree.h"
#include "kernels/status.h"

namespace tessera {
namespace {

MemoryRange RangeOf(const Tensor& tensor) {
  return MemoryRange{tensor.data(), tensor.num_bytes()};
}

char* PlaceOf(const Tensor& whole, const Tensor& shard, int rank) {
  return static_cast<char*>(whole.data()) +
         rank * shard.num_elements() * ElementBytes(whole.dtype());
}

absl::Status CheckSizes(const char* operation, std::string_view what,
                        const Tensor& whole, const Tensor& shard,
                        int world_size) {
  if (whole.num_elements() == shard.num_elements() * world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(operation, " of '", std::string(what), "': wanted ",
                   world_size, " ranks x ", shard.num_elements(),
                   " elements, but the whole has ", whole.num_elements()));
}

// Zeroed memory that the allocator counts as a share of it.
class CountedShare {
 public:
  CountedShare(Device device, int64_t num_bytes, int64_t share_bytes,
               MemoryCategory category)
      : allocator_(AllocatorOf(device)),
        share_bytes_(share_bytes),
        category_(category) {
    allocator_.CountExternal(share_bytes, category);
    data_ = std::calloc(num_bytes > 0 ? num_bytes : 1, 1);
    TESSERA_CHECK(data_ != nullptr);
  }
  ~CountedShare() {
    std::free(data_);
    allocator_.UncountExternal(share_bytes_, category_);
  }
  CountedShare(const CountedShare&) = delete;
  CountedShare& operator=(const CountedShare&) = delete;

  void* data() const { return data_; }

 private:
  Allocator& allocator_;
  const int64_t share_bytes_;
  const MemoryCategory category_;
  void* data_ = nullptr;
};

}  // namespace

absl::Status FakeCommunicator::abort_status() const {
  std::lock_guard lock(mutex_);
  return abort_status_;
}

absl::Status FakeCommunicator::AllGather(std::span<const GatherPart> parts,
                                         Stream& stream,
                                         std::string_view what) {
  RETURN_IF_ERROR(abort_status());
  for (const GatherPart& part : parts) {
    RETURN_IF_ERROR(
        CheckSizes("AllGather", what, part.whole, part.shard, world_size()));
    if (part.whole.is_meta()) continue;
    char* place = PlaceOf(part.whole, part.shard, rank());
    RETURN_IF_ERROR(Try([&] {
      stream.Enqueue("AllGather",
                     [part, place, from = part.shard.data()] {
                       if (place == from) return;
                       std::memcpy(place, from, part.shard.num_bytes());
                     },
                     {{RangeOf(part.shard)}, {RangeOf(part.whole)}});
    }));
  }
  return absl::OkStatus();
}

absl::Status FakeCommunicator::ReduceScatter(std::span<const ReducePart> parts,
                                             const Reduction& reduction,
                                             const Tensor& /*flags*/,
                                             Stream& stream,
                                             std::string_view what) {
  RETURN_IF_ERROR(abort_status());
  for (const ReducePart& part : parts) {
    RETURN_IF_ERROR(CheckSizes("ReduceScatter", what, part.whole, part.shard,
                               world_size()));
    RETURN_IF_ERROR(CheckReduction(
        part.whole.dtype(), part.shard.dtype(), reduction, part.accumulate,
        absl::StrCat("ReduceScatter of '", std::string(what), "'")));
    if (part.whole.is_meta()) continue;
    const void* slice = PlaceOf(part.whole, part.shard, rank());
    RETURN_IF_ERROR(Try([&] {
      stream.Enqueue("ReduceScatter",
                     [part, reduction, slice, output = part.shard.data()] {
                       ReduceTree({.inputs = {&slice, 1},
                                   .dtype = part.whole.dtype(),
                                   .num_elements = part.shard.num_elements(),
                                   .output = output,
                                   .output_dtype = part.shard.dtype(),
                                   .accumulate = part.accumulate,
                                   .reduction = reduction});
                     },
                     {{RangeOf(part.whole)}, {RangeOf(part.shard)}});
    }));
  }
  return absl::OkStatus();
}

absl::Status FakeCommunicator::AllReduce(std::span<const Tensor> tensors,
                                         const Reduction& reduction,
                                         Stream& stream,
                                         std::string_view what) {
  RETURN_IF_ERROR(abort_status());
  for (const Tensor& tensor : tensors) {
    RETURN_IF_ERROR(
        CheckReduction(tensor.dtype(), tensor.dtype(), reduction, false,
                       absl::StrCat("AllReduce of '", std::string(what), "'")));
    if (tensor.is_meta()) continue;
    RETURN_IF_ERROR(Try([&] {
      stream.Enqueue("AllReduce",
                     [tensor, reduction, data = tensor.data()] {
                       const void* input = data;
                       ReduceTree({.inputs = {&input, 1},
                                   .dtype = tensor.dtype(),
                                   .num_elements = tensor.num_elements(),
                                   .output = data,
                                   .output_dtype = tensor.dtype(),
                                   .reduction = reduction});
                     },
                     {{}, {RangeOf(tensor)}});
    }));
  }
  return absl::OkStatus();
}

absl::Status FakeCommunicator::Broadcast(std::span<const Tensor> /*tensors*/,
                                         int root, Stream& /*stream*/,
                                         std::string_view what) {
  RETURN_IF_ERROR(abort_status());
  if (root >= 0 && root < world_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Broadcast of '", std::string(what), "': root is rank ",
                   root, " of ", world_size(), " ranks"));
}

absl::Status FakeCommunicator::Barrier(Stream& /*stream*/,
                                       std::string_view /*what*/) {
  return abort_status();
}

absl::StatusOr<CommBuffer> FakeCommunicator::AllocateBuffer(
    Device device, int64_t num_bytes, CommBufferKind kind,
    MemoryCategory category) {
  RETURN_IF_ERROR(abort_status());
  const bool common =
      options_.common_buffers && kind == CommBufferKind::kCommon;
  if (device.is_meta()) {
    return CommBuffer{Storage::Allocated(device, num_bytes), common};
  }
  if (!common) {
    return AllocatePrivateBuffer({device, num_bytes, kind, category});
  }
  CommBuffer buffer{nullptr, true};
  RETURN_IF_ERROR(Try([&] {
    const int64_t share = (num_bytes + world_size() - 1) / world_size();
    auto memory =
        std::make_shared<CountedShare>(device, num_bytes, share, category);
    buffer.storage =
        Storage::Borrowed(device, memory->data(), num_bytes, memory);
  }));
  return buffer;
}

void FakeCommunicator::Abort(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (abort_status_.ok()) abort_status_ = status;
}

absl::Status FakeCommunicator::FailTogether(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) Abort(status);
  RETURN_IF_ERROR(abort_status());
  return status;
}

absl::StatusOr<std::vector<std::string>> FakeCommunicator::AllGatherBytes(
    const std::string& value, std::string_view /*what*/) {
  RETURN_IF_ERROR(abort_status());
  return std::vector<std::string>(world_size(), value);
}

absl::StatusOr<std::shared_ptr<Communicator>> FakeCommunicator::Split(
    const std::vector<int>& group, const std::string& group_name) {
  RETURN_IF_ERROR(abort_status());
  RETURN_IF_ERROR(CheckSplitGroup(group, rank(), world_size(), group_name));
  FakeOptions options = options_;
  options.world_size = static_cast<int>(group.size());
  options.rank = 0;
  while (group[options.rank] != rank()) ++options.rank;
  return std::shared_ptr<Communicator>(
      std::make_shared<FakeCommunicator>(options));
}

}  // namespace tessera
