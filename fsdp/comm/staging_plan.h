// How parts are cut to pass through a buffer of limited size, and a tensor into
// slices for the ranks. Arithmetic only; the same on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Where pieces start in a staging buffer.
inline constexpr int64_t kStagingAlignment = 64;
inline int64_t RoundUpStaging(int64_t value) {
  return (value + kStagingAlignment - 1) / kStagingAlignment *
         kStagingAlignment;
}

// A piece of a part; all in bytes.
struct StagingPiece {
  int part;
  int64_t begin;
  int64_t length;
  int64_t staging_offset;
};
// What passes at once.
using StagingRound = std::vector<StagingPiece>;

// Cuts parts of `part_bytes` (negative: left out) into rounds of at most
// `capacity` bytes, in which each piece takes `copies` times its rounded
// length. Pieces begin at multiples of 64 bytes, and so of any element.
std::vector<StagingRound> PlanStaging(std::span<const int64_t> part_bytes,
                                      int copies, int64_t capacity);

// The elements of a tensor that a rank sums in an all-reduce.
struct ElementSlice {
  int64_t begin;
  int64_t length;
};
inline ElementSlice SliceOfRank(int64_t num_elements, int rank,
                                int world_size) {
  const int64_t chunk =
      RoundUpStaging((num_elements + world_size - 1) / world_size);
  const int64_t begin = std::min(num_elements, chunk * rank);
  return {begin, std::min(chunk, num_elements - begin)};
}

}  // namespace tessera
