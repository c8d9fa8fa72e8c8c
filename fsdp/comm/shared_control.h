// A small memory that all ranks of a group on one host see: a barrier, what
// each rank says about the collective it is in, and the word that ends all
// waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/comm/collective_header.h"
#include "fsdp/comm/host_communicator.h"

namespace tessera {

// Where a rank's memory is to be found by the others.
struct PartRef {
  int32_t segment = -1;  // -1: nowhere.
  int32_t common = 0;    // 1: all ranks see the same bytes there.
  uint64_t offset = 0;

  friend bool operator==(const PartRef&, const PartRef&) = default;
};

inline constexpr int kMaxPartRefs = 256;
inline constexpr int kMaxSmallBytes = 2048;

// What a rank posts before a barrier and all read after it. Two a rank, used in
// turn: a rank can be one collective ahead of a reader, never two.
struct Posted {
  CollectiveHeader header;
  PartRef refs[kMaxPartRefs];
  int32_t num_small = 0;
  uint8_t small[kMaxSmallBytes];  // Flags, or a message of the set-up.
};

// Works on memory that others own; one object a rank. Barrier and posted() are
// for one thread at a time, the rest for any.
class SharedControl {
 public:
  static int64_t NumBytes(int world_size);

  // `memory`: NumBytes, zero at first, the same for all ranks. `spin`: whether
  // a wait may spin briefly before it sleeps.
  SharedControl(void* memory, CommunicatorGroup group, const WaitOptions& wait,
                bool spin);

  Posted& posted(int rank, uint64_t sequence) const;

  // Returns when all ranks have come. `operation` is for messages. Ends early
  // when a rank aborts, or is missing and has left or is late beyond the
  // time-out.
  absl::Status Barrier(const std::string& operation);

  // The first abort of the group is what all ranks are told.
  void Abort(const absl::Status& status);
  // This rank takes part in nothing more.
  void Leave();

 private:
  struct RankSlot;
  struct Block;

  std::vector<int> MissingRanks() const;
  absl::Status AbortStatus() const;
  absl::Status CheckMissing(const std::string& operation) const;
  absl::Status Sleep(uint32_t generation, const std::string& operation);
  absl::Status TimeoutError(const std::string& operation) const;

  Block* const block_;
  RankSlot* const slots_;
  const CommunicatorGroup group_;
  const WaitOptions wait_;
  const int spin_rounds_;
  uint32_t phase_ = 0;  // Barriers that this rank has entered.
};

// Whether `num_threads` waiting threads fit the cores that this process has.
bool FitsCores(int num_threads);

}  // namespace tessera
