// What each rank says about a collective before it moves a byte, and what the
// ranks are told when they do not say the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/comm/communicator.h"
#include "kernels/dtype.h"

namespace tessera {

enum class Operation : uint32_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kAllocateBuffer,
  kFailTogether,
};
const char* OperationName(Operation operation);

// Lies in shared memory and travels over sockets as it is.
struct CollectiveHeader {
  uint64_t sequence = 0;  // Of the communicator's collectives.
  Operation operation = Operation::kBarrier;
  uint32_t num_parts = 0;
  int64_t num_bytes = 0;     // Of all parts.
  uint64_t fingerprint = 0;  // Of the parts' sizes, types and options.
  double divisor = 1;
  int32_t root = -1;
  int32_t num_flags = 0;
  ReduceOp reduce_op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;  // Of the first part.
  int32_t status_code = 0;        // Not 0: this rank cannot take part.
  char what[120] = {};            // Cut short when longer.
};

// Adds a part to the header's counts.
void AddPart(CollectiveHeader& header, int64_t num_bytes, DType dtype,
             uint64_t options = 0);
void SetWhat(CollectiveHeader& header, std::string_view what);
// "ReduceScatter of 'h.0' (float32, 3 parts, 4096 bytes)".
std::string Describe(const CollectiveHeader& header);

// The ranks of a communicator, in the numbers of the whole job.
struct CommunicatorGroup {
  int rank = 0;                   // In the group.
  std::vector<int> global_ranks;  // By rank in the group, ascending.
  std::string name;               // Empty for the whole world.

  int size() const { return static_cast<int>(global_ranks.size()); }
  // "rank 5", or "rank 5 (1 of group shard)" in a group with a name.
  std::string RankName(int rank_in_group) const;
  // "ranks 2, 3": of ranks in the group.
  std::string RankNames(std::span<const int> ranks_in_group) const;
  static CommunicatorGroup World(int rank, int world_size);
};

// The ranks `members` (of `parent`, ascending, containing its own rank).
CommunicatorGroup MakeSubgroup(const CommunicatorGroup& parent,
                               const std::vector<int>& members,
                               const std::string& name);

// OK when all ranks run the same collective, whether they can or not; else an
// error that names the first two that differ and what to do. `headers` are by
// rank in the group.
absl::Status CompareHeaders(std::span<const CollectiveHeader* const> headers,
                            const CommunicatorGroup& group);

}  // namespace tessera
