// The ranks that talk to each other, and what they can say.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

enum class ReduceOp { kSum, kMax };

// What a reduction gives: op over ranks, then, for sums of floats, one division
// by `divisor` (the mean: divisor = number of contributions).
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double divisor = 1;
};

// Rank i's `shard` becomes the i-th of world_size equal parts of `whole`. In
// place when `shard` is that part of `whole` (same address).
struct GatherPart {
  Tensor shard;
  Tensor whole;
};

// The ranks' `whole`s are reduced, and the result's i-th part is put in rank
// i's `shard`. `shard` may have AccumulateDType of whole's dtype. With
// `accumulate` the result is added to what `shard` holds.
struct ReducePart {
  Tensor whole;
  Tensor shard;
  bool accumulate = false;
};

// Memory for collectives that need no copies. `common`: all ranks see the same
// bytes (an all-gather is then one write of each rank's part).
struct CommBuffer {
  std::shared_ptr<Storage> storage;
  bool common = false;
};
enum class CommBufferKind {
  kCommon,  // One memory for all ranks where that is possible.
  kPeer,    // One memory a rank, which the other ranks can read.
};

// A call queues its work on `stream` and returns at once; its status is that
// of the launch alone, and what fails later fails the stream. Every rank makes
// the same calls in the same order, from one thread. Tensors are contiguous and
// live until the work is done. `what` (the unit or parameter) appears in
// errors; together with sequence, operation and bytes it is compared between
// ranks, and a difference is an error on all ranks that names both.
//
// A reduction adds along one fixed binary tree over ranks, neighbours first
// ((r0+r1)+(r2+r3)), in AccumulateDType, so all implementations give the same
// bits.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // "thread", "shared_memory", "gloo", "fake".
  virtual const char* name() const = 0;

  // Parts of one group travel together and count as one collective.
  virtual absl::Status AllGather(std::span<const GatherPart> parts,
                                 Stream& stream, std::string_view what) = 0;
  // `flags`, if defined, is a small uint8 tensor that becomes its elementwise
  // maximum over ranks in the same collective.
  virtual absl::Status ReduceScatter(std::span<const ReducePart> parts,
                                     const Reduction& reduction,
                                     const Tensor& flags, Stream& stream,
                                     std::string_view what) = 0;
  // In place. int64 and float tensors; every rank gets the same bits.
  virtual absl::Status AllReduce(std::span<const Tensor> tensors,
                                 const Reduction& reduction, Stream& stream,
                                 std::string_view what) = 0;
  virtual absl::Status Broadcast(std::span<const Tensor> tensors, int root,
                                 Stream& stream, std::string_view what) = 0;
  virtual absl::Status Barrier(Stream& stream, std::string_view what) = 0;

  // A collective call that blocks: every rank asks for the same size. Counted
  // by the allocator of `device` under `category` (common memory: each rank
  // its share). The content is zero.
  virtual absl::StatusOr<CommBuffer> AllocateBuffer(
      Device device, int64_t num_bytes, CommBufferKind kind,
      MemoryCategory category) = 0;

  // Ends all waits of this rank, now and later, with `status`, and tells the
  // other ranks, whose waits end with it too. From any thread.
  virtual void Abort(const absl::Status& status) = 0;

  // [Note: failing together] A rank that lacks memory says so, and all ranks
  // lose the step and not the run. Every rank calls this once its part of the
  // step has failed, by its own lack of memory or by the error that the others'
  // gave to a collective, with its streams idle; blocks. A rank that still runs
  // collectives gets the error from the first that this one does not join:
  // nothing moves in it nor in those queued behind it. Returns the first
  // failing rank's error, with its rank named, the same on all ranks, and the
  // communicator is as good as new. Any other code than kResourceExhausted
  // aborts the communicator, whose abort is then returned.
  virtual absl::Status FailTogether(const absl::Status& status) = 0;

  // Blocking exchange of host bytes: the values of all ranks, by rank. Sizes
  // may differ. Used to validate before the first collective.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(
      const std::string& value, std::string_view what);
  // `status` of this rank becomes everybody's: OK when all are OK, else the
  // first failing rank's error, with its rank named, on all ranks.
  absl::Status AgreeOnStatus(const absl::Status& status, std::string_view what);

  // A new communicator of some of the ranks: every rank of this one calls it
  // with its own group (ranks of this communicator, ascending, containing it).
  virtual absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<int>& group, const std::string& group_name) = 0;
};

}  // namespace tessera
