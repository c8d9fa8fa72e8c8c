#include "fsdp/comm/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/comm/reduce_tree.h"
#include "fsdp/comm/short_slice.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

MemoryRange RangeOf(const Tensor& tensor) {
  return MemoryRange{tensor.data(), tensor.num_bytes()};
}

std::string Where(const char* operation, std::string_view what) {
  return absl::StrCat(operation, " of '", std::string(what), "'");
}

// Of a stream's worker: it waits for other ranks more than it works.
void AskOnceForShortSlice() {
  thread_local const bool asked = AskForShortSlice();
  (void)asked;
}

absl::Status CheckParts(const Tensor& whole, const Tensor& shard,
                        int world_size, size_t index,
                        const std::string& where) {
  if (whole.num_elements() == shard.num_elements() * world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": part ", index, ": wanted ", world_size,
                   " ranks x ", shard.num_elements(),
                   " elements, but the whole has ", whole.num_elements()));
}

}  // namespace

// Held by the queued work; tells the communicator when it is dropped unrun.
class HostCommunicator::Ticket {
 public:
  // `before`: the point in the stream where the work begins.
  Ticket(std::shared_ptr<HostCommunicator> communicator,
         const CollectiveHeader& header, Event before)
      : communicator_(std::move(communicator)),
        header_(header),
        before_(std::move(before)) {}
  ~Ticket() {
    if (ran_) return;
    communicator_->Dropped(header_, Try([&] { before_.Synchronize(); }));
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  absl::Status Run(const std::function<absl::Status()>& run) {
    ran_ = true;
    return communicator_->RunInTurn(header_, run);
  }

 private:
  std::shared_ptr<HostCommunicator> communicator_;
  const CollectiveHeader header_;
  const Event before_;
  bool ran_ = false;
};

CollectiveHeader HostCommunicator::MakeHeader(Operation operation,
                                              std::string_view what) const {
  CollectiveHeader header;
  header.sequence = next_sequence_;
  header.operation = operation;
  SetWhat(header, what);
  return header;
}

std::string HostCommunicator::Context(const CollectiveHeader& header) const {
  return absl::StrCat(Describe(header), " on ", group_.RankName(group_.rank));
}

absl::Status HostCommunicator::abort_status() const {
  std::lock_guard lock(mutex_);
  return abort_status_;
}

absl::Status HostCommunicator::StatusLocked() const {
  return abort_status_.ok() ? failure_ : abort_status_;
}

absl::Status HostCommunicator::status() const {
  std::lock_guard lock(mutex_);
  return StatusLocked();
}

bool HostCommunicator::failed_together() const {
  std::lock_guard lock(mutex_);
  return failed_together_;
}

void HostCommunicator::Dropped(const CollectiveHeader& header,
                               const absl::Status& cause) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    if (absl::IsResourceExhausted(cause)) failure_ = cause;
  }
  if (absl::IsResourceExhausted(cause)) return turn_changed_.notify_all();
  Abort(absl::CancelledError(
      absl::StrCat(Context(header),
                   " was dropped, because earlier work of its stream failed "
                   "on this rank: ",
                   cause.message())));
}

absl::Status HostCommunicator::CompareWords(std::span<const RankWord> words) {
  std::vector<const CollectiveHeader*> headers;
  headers.reserve(words.size());
  for (size_t r = 0; r < words.size(); ++r) {
    const CollectiveHeader& header = *words[r].header;
    headers.push_back(&header);
    if (header.status_code == 0) continue;
    std::lock_guard lock(mutex_);
    failed_together_ = true;
    failure_ = absl::Status(static_cast<absl::StatusCode>(header.status_code),
                            absl::StrCat(group_.RankName(static_cast<int>(r)),
                                         ": ", words[r].reason));
    return failure_;
  }
  return CompareHeaders(headers, group_);
}

absl::Status HostCommunicator::FailTogether(const absl::Status& status) {
  TESSERA_CHECK(!status.ok());
  if (!absl::IsResourceExhausted(status)) Abort(status);
  if (absl::Status aborted = abort_status(); !aborted.ok()) return aborted;
  if (!failed_together()) {
    CollectiveHeader header = MakeHeader(Operation::kFailTogether, "the step");
    {
      std::lock_guard lock(mutex_);
      failure_ = absl::OkStatus();
      header.sequence = turn_;
    }
    absl::Status met =
        RunInTurn(header, [&] { return RunFailTogether(header, status); });
    if (!failed_together()) return met;
  }
  std::lock_guard lock(mutex_);
  next_sequence_ = turn_;
  failed_together_ = false;
  return std::exchange(failure_, absl::OkStatus());
}

void HostCommunicator::Abort(const absl::Status& status) {
  Stop(status, Annotate(status, absl::StrCat(group_.RankName(group_.rank),
                                             " ended the run")));
}

void HostCommunicator::StopWithoutTelling(const absl::Status& status) {
  TESSERA_CHECK(!status.ok());
  {
    std::lock_guard lock(mutex_);
    if (abort_status_.ok()) abort_status_ = status;
  }
  turn_changed_.notify_all();
}

void HostCommunicator::Stop(const absl::Status& status,
                            const absl::Status& tell_others) {
  StopWithoutTelling(status);
  AbortWaits(tell_others);
}

absl::Status HostCommunicator::WaitForTurn(uint64_t sequence) {
  std::unique_lock lock(mutex_);
  turn_changed_.wait(lock,
                     [&] { return turn_ == sequence || !StatusLocked().ok(); });
  return StatusLocked();
}

absl::Status HostCommunicator::RunInTurn(
    const CollectiveHeader& header, const std::function<absl::Status()>& run) {
  absl::Status status = WaitForTurn(header.sequence);
  if (!status.ok()) return Annotate(status, Context(header));
  status = Try(run);
  if (!status.ok()) status = Annotate(status, Context(header));
  if (!status.ok() && !failed_together()) {
    Abort(status);
    return status;
  }
  {
    std::lock_guard lock(mutex_);
    ++turn_;
  }
  turn_changed_.notify_all();
  return status;
}

absl::Status HostCommunicator::Submit(const CollectiveHeader& header,
                                      Stream& stream, AccessList access,
                                      std::function<absl::Status()> run) {
  if (absl::Status ended = status(); !ended.ok()) {
    return Annotate(ended, Context(header));
  }
  ++next_sequence_;
  const bool queued = stream.mode() == StreamMode::kQueued;
  auto ticket =
      std::make_shared<Ticket>(shared_from_this(), header, stream.Record());
  return Try([&] {
    stream.Enqueue(
        OperationName(header.operation),
        [ticket, run = std::move(run), queued] {
          if (queued) AskOnceForShortSlice();
          OrThrow(ticket->Run(run));
        },
        std::move(access));
  });
}

absl::Status HostCommunicator::CheckTensor(const Tensor& tensor,
                                           const char* operation,
                                           std::string_view what) const {
  const std::string where = Where(operation, what);
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a tensor is undefined"));
  }
  if (tensor.device().type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": the ", name(),
        " communicator wants tensors in host memory, got ", tensor.ToString()));
  }
  if (!tensor.IsContiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": wanted contiguous tensors, got ",
                     tensor.ToString(), " with gaps"));
  }
  return absl::OkStatus();
}

bool HostCommunicator::MovesBytes(const GatherPart& part) const {
  const char* place = static_cast<const char*>(part.whole.data()) +
                      part.shard.num_bytes() * rank();
  return part.shard.data() != place || !IsCommon(part.whole);
}

absl::Status HostCommunicator::AllGather(std::span<const GatherPart> parts,
                                         Stream& stream,
                                         std::string_view what) {
  CollectiveHeader header = MakeHeader(Operation::kAllGather, what);
  const std::string where = Where("AllGather", what);
  AccessList access;
  std::vector<GatherMemory> memory;
  std::vector<GatherPart> kept(parts.begin(), parts.end());
  for (const GatherPart& part : parts) {
    RETURN_IF_ERROR(CheckTensor(part.shard, "AllGather", what));
    RETURN_IF_ERROR(CheckTensor(part.whole, "AllGather", what));
    RETURN_IF_ERROR(
        CheckParts(part.whole, part.shard, world_size(), memory.size(), where));
    if (part.shard.dtype() != part.whole.dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": shard is ", DTypeName(part.shard.dtype()),
                       ", whole is ", DTypeName(part.whole.dtype())));
    }
    AddPart(header, part.whole.num_bytes(), part.whole.dtype());
    access.reads.push_back(RangeOf(part.shard));
    (MovesBytes(part) ? access.writes : access.reads)
        .push_back(RangeOf(part.whole));
    memory.push_back(
        {part.shard.data(), part.whole.data(), part.shard.num_bytes()});
  }
  return Submit(
      header, stream, std::move(access),
      [this, header, kept = std::move(kept), memory = std::move(memory)]() {
        return RunAllGather(header, memory);
      });
}

absl::Status HostCommunicator::ReduceScatter(std::span<const ReducePart> parts,
                                             const Reduction& reduction,
                                             const Tensor& flags,
                                             Stream& stream,
                                             std::string_view what) {
  CollectiveHeader header = MakeHeader(Operation::kReduceScatter, what);
  const std::string where = Where("ReduceScatter", what);
  header.divisor = reduction.divisor;
  header.reduce_op = reduction.op;
  AccessList access;
  std::vector<ReduceMemory> memory;
  std::vector<ReducePart> kept(parts.begin(), parts.end());
  for (const ReducePart& part : parts) {
    RETURN_IF_ERROR(CheckTensor(part.whole, "ReduceScatter", what));
    RETURN_IF_ERROR(CheckTensor(part.shard, "ReduceScatter", what));
    RETURN_IF_ERROR(
        CheckParts(part.whole, part.shard, world_size(), memory.size(), where));
    RETURN_IF_ERROR(CheckReduction(part.whole.dtype(), part.shard.dtype(),
                                   reduction, part.accumulate, where));
    AddPart(header, part.whole.num_bytes(), part.whole.dtype());
    access.reads.push_back(RangeOf(part.whole));
    access.writes.push_back(RangeOf(part.shard));
    memory.push_back({part.whole.data(), part.shard.data(),
                      part.shard.num_elements(), part.whole.dtype(),
                      part.shard.dtype(), part.accumulate});
  }
  std::span<uint8_t> flag_bytes;
  if (flags.defined()) {
    RETURN_IF_ERROR(CheckTensor(flags, "ReduceScatter", what));
    if (flags.dtype() != DType::kUInt8) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": wanted uint8 flags, got ", flags.ToString()));
    }
    header.num_flags = static_cast<int32_t>(flags.num_elements());
    access.writes.push_back(RangeOf(flags));
    flag_bytes = {flags.data<uint8_t>(),
                  static_cast<size_t>(flags.num_elements())};
  }
  return Submit(header, stream, std::move(access),
                [this, header, kept = std::move(kept),
                 memory = std::move(memory), reduction, flags, flag_bytes]() {
                  return RunReduceScatter(header, memory, reduction,
                                          flag_bytes);
                });
}

absl::Status HostCommunicator::AllReduce(std::span<const Tensor> tensors,
                                         const Reduction& reduction,
                                         Stream& stream,
                                         std::string_view what) {
  CollectiveHeader header = MakeHeader(Operation::kAllReduce, what);
  header.divisor = reduction.divisor;
  header.reduce_op = reduction.op;
  AccessList access;
  std::vector<TensorMemory> memory;
  std::vector<Tensor> kept(tensors.begin(), tensors.end());
  for (const Tensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckTensor(tensor, "AllReduce", what));
    RETURN_IF_ERROR(CheckReduction(tensor.dtype(), tensor.dtype(), reduction,
                                   false, Where("AllReduce", what)));
    AddPart(header, tensor.num_bytes(), tensor.dtype());
    access.writes.push_back(RangeOf(tensor));
    memory.push_back({tensor.data(), tensor.num_elements(), tensor.dtype()});
  }
  return Submit(
      header, stream, std::move(access),
      [this, header, kept = std::move(kept), memory = std::move(memory),
       reduction]() { return RunAllReduce(header, memory, reduction); });
}

absl::Status HostCommunicator::Broadcast(std::span<const Tensor> tensors,
                                         int root, Stream& stream,
                                         std::string_view what) {
  CollectiveHeader header = MakeHeader(Operation::kBroadcast, what);
  header.root = root;
  if (root < 0 || root >= world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where("Broadcast", what), ": root is rank ", root, " of ",
                     world_size(), " ranks"));
  }
  AccessList access;
  std::vector<TensorMemory> memory;
  std::vector<Tensor> kept(tensors.begin(), tensors.end());
  for (const Tensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckTensor(tensor, "Broadcast", what));
    AddPart(header, tensor.num_bytes(), tensor.dtype());
    (root == rank() ? access.reads : access.writes).push_back(RangeOf(tensor));
    memory.push_back({tensor.data(), tensor.num_elements(), tensor.dtype()});
  }
  return Submit(
      header, stream, std::move(access),
      [this, header, kept = std::move(kept), memory = std::move(memory),
       root]() { return RunBroadcast(header, memory, root); });
}

absl::Status HostCommunicator::Barrier(Stream& stream, std::string_view what) {
  const CollectiveHeader header = MakeHeader(Operation::kBarrier, what);
  return Submit(header, stream, {},
                [this, header] { return RunBarrier(header); });
}

absl::StatusOr<CommBuffer> HostCommunicator::AllocateBuffer(
    Device device, int64_t num_bytes, CommBufferKind kind,
    MemoryCategory category) {
  CollectiveHeader header = MakeHeader(
      Operation::kAllocateBuffer,
      kind == CommBufferKind::kCommon ? "common memory" : "peer memory");
  AddPart(header, num_bytes, DType::kUInt8, static_cast<uint64_t>(kind));
  if (device.type != DeviceType::kCpu || num_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("AllocateBuffer: the ", name(),
                     " communicator has host memory only, asked for ",
                     num_bytes, " bytes on ", device.ToString()));
  }
  if (absl::Status ended = status(); !ended.ok()) {
    return Annotate(ended, Context(header));
  }
  ++next_sequence_;
  absl::StatusOr<CommBuffer> buffer = CommBuffer{};
  const BufferRequest request{device, num_bytes, kind, category};
  RETURN_IF_ERROR(RunInTurn(
      header, [&] { return RunAllocateBuffer(header, request, buffer); }));
  if (!buffer.ok()) return Annotate(buffer.status(), Context(header));
  return buffer;
}

absl::StatusOr<CommBuffer> AllocatePrivateBuffer(const BufferRequest& request) {
  CommBuffer buffer;
  RETURN_IF_ERROR(Try([&] {
    const MemoryCategoryGuard guard(request.category);
    buffer.storage = Storage::Allocated(request.device, request.num_bytes);
    // The block may be one that queued work has not finished with, and other
    // streams than compute will write to it.
    ComputeStream(request.device).Synchronize();
    std::memset(buffer.storage->data(), 0, request.num_bytes);
  }));
  return buffer;
}

absl::Status CheckSplitGroup(const std::vector<int>& group, int rank,
                             int world_size, const std::string& group_name) {
  const bool in_range =
      !group.empty() && group.front() >= 0 && group.back() < world_size;
  const bool ascending =
      std::adjacent_find(group.begin(), group.end(),
                         [](int a, int b) { return a >= b; }) == group.end();
  const bool member =
      std::find(group.begin(), group.end(), rank) != group.end();
  if (in_range && ascending && member) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Split into '", group_name, "': wanted ascending ranks of 0 to ",
      world_size - 1, " that contain rank ", rank, ", got [",
      absl::StrJoin(group, ", "), "]"));
}

absl::Status AgreeOnSplit(Communicator& parent, const std::vector<int>& group,
                          const std::string& group_name) {
  const absl::Status mine =
      CheckSplitGroup(group, parent.rank(), parent.world_size(), group_name);
  RETURN_IF_ERROR(parent.AgreeOnStatus(mine, "Split"));
  const std::string text =
      absl::StrCat(absl::StrJoin(group, ","), " ", group_name);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   parent.AllGatherBytes(text, "Split"));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (absl::string_view member :
         absl::StrSplit(texts[rank].substr(0, texts[rank].find(' ')), ',')) {
      int other = 0;
      TESSERA_CHECK(absl::SimpleAtoi(member, &other));
      if (texts[other] == texts[rank]) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "Split: ranks disagree on their group: rank ", rank, " asks for [",
          texts[rank], "], its member rank ", other, " for [", texts[other],
          "]; all members must name the same ranks and the same name"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
