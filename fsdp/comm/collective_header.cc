#include "fsdp/comm/collective_header.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

bool Same(const CollectiveHeader& a, const CollectiveHeader& b) {
  return a.sequence == b.sequence && a.operation == b.operation &&
         a.num_parts == b.num_parts && a.num_bytes == b.num_bytes &&
         a.fingerprint == b.fingerprint && a.divisor == b.divisor &&
         a.root == b.root && a.num_flags == b.num_flags &&
         a.reduce_op == b.reduce_op && a.dtype == b.dtype &&
         std::strncmp(a.what, b.what, sizeof(a.what)) == 0;
}

// What Describe leaves out, when it is that which differs.
std::string Details(const CollectiveHeader& header) {
  return absl::StrCat(" [collective ", header.sequence, ", root ", header.root,
                      ", divisor ", header.divisor, ", ", header.num_flags,
                      " flags, op ",
                      header.reduce_op == ReduceOp::kSum ? "sum" : "max",
                      ", sizes of parts ", header.fingerprint % 10000, "]");
}

const char* Remedy(const CollectiveHeader& a, const CollectiveHeader& b) {
  if (a.operation == b.operation &&
      std::strncmp(a.what, b.what, sizeof(a.what)) == 0) {
    return "the ranks must be given the same model and options, and the same "
           "divisor of gradients";
  }
  if ((a.operation == Operation::kReduceScatter ||
       a.operation == Operation::kAllReduce) !=
      (b.operation == Operation::kReduceScatter ||
       b.operation == Operation::kAllReduce)) {
    return "one reduces and the other does not: gradient sync (NoSync) must be "
           "the same on all ranks, and all must run the same units in the same "
           "order; mark modules whose children differ between ranks with "
           "ranks_may_differ";
  }
  return "all ranks must run the same units in the same order, with the same "
         "divisor of gradients; mark modules whose children differ between "
         "ranks with ranks_may_differ";
}

}  // namespace

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return "AllGather";
    case Operation::kReduceScatter:
      return "ReduceScatter";
    case Operation::kAllReduce:
      return "AllReduce";
    case Operation::kBroadcast:
      return "Broadcast";
    case Operation::kBarrier:
      return "Barrier";
    case Operation::kAllocateBuffer:
      return "AllocateBuffer";
    case Operation::kFailTogether:
      return "FailTogether";
  }
  return "unknown operation";
}

void AddPart(CollectiveHeader& header, int64_t num_bytes, DType dtype,
             uint64_t options) {
  if (header.num_parts == 0) header.dtype = dtype;
  ++header.num_parts;
  header.num_bytes += num_bytes;
  header.fingerprint = Mix(header.fingerprint, num_bytes);
  header.fingerprint =
      Mix(header.fingerprint, static_cast<uint64_t>(dtype) | options << 8);
}

void SetWhat(CollectiveHeader& header, std::string_view what) {
  const size_t length = std::min(what.size(), sizeof(header.what) - 1);
  std::memcpy(header.what, what.data(), length);
  header.what[length] = 0;
}

std::string Describe(const CollectiveHeader& header) {
  std::string text = absl::StrCat(OperationName(header.operation), " of '",
                                  std::string(header.what), "'");
  if (header.num_parts == 0) return text;
  absl::StrAppend(&text, " (", DTypeName(header.dtype), ", ");
  if (header.num_parts > 1) {
    absl::StrAppend(&text, header.num_parts, " parts, ");
  }
  absl::StrAppend(&text, header.num_bytes, " bytes)");
  return text;
}

std::string CommunicatorGroup::RankName(int rank_in_group) const {
  std::string text = absl::StrCat("rank ", global_ranks[rank_in_group]);
  if (!name.empty()) {
    absl::StrAppend(&text, " (", rank_in_group, " of group ", name, ")");
  }
  return text;
}

std::string CommunicatorGroup::RankNames(
    std::span<const int> ranks_in_group) const {
  if (ranks_in_group.size() == 1) return RankName(ranks_in_group[0]);
  std::vector<int> global;
  for (int rank : ranks_in_group) global.push_back(global_ranks[rank]);
  std::string text = absl::StrCat("ranks ", absl::StrJoin(global, ", "));
  if (!name.empty()) absl::StrAppend(&text, " (of group ", name, ")");
  return text;
}

CommunicatorGroup CommunicatorGroup::World(int rank, int world_size) {
  CommunicatorGroup group;
  group.rank = rank;
  for (int i = 0; i < world_size; ++i) group.global_ranks.push_back(i);
  return group;
}

CommunicatorGroup MakeSubgroup(const CommunicatorGroup& parent,
                               const std::vector<int>& members,
                               const std::string& name) {
  CommunicatorGroup group;
  group.name = name;
  for (int member : members) {
    if (member == parent.rank) group.rank = group.size();
    group.global_ranks.push_back(parent.global_ranks[member]);
  }
  return group;
}

absl::Status CompareHeaders(std::span<const CollectiveHeader* const> headers,
                            const CommunicatorGroup& group) {
  for (int rank = 1; rank < static_cast<int>(headers.size()); ++rank) {
    const CollectiveHeader& first = *headers[0];
    const CollectiveHeader& other = *headers[rank];
    if (Same(first, other)) continue;
    std::string text_a = Describe(first);
    std::string text_b = Describe(other);
    if (text_a == text_b) {
      text_a += Details(first);
      text_b += Details(other);
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "collective ", first.sequence,
        " differs between ranks: ", group.RankName(0), " runs ", text_a, ", ",
        group.RankName(rank), " runs ", text_b, "; ", Remedy(first, other)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
