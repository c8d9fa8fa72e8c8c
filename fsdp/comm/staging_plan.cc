#include "fsdp/comm/staging_plan.h"

#include "kernels/status.h"

namespace tessera {

std::vector<StagingRound> PlanStaging(std::span<const int64_t> part_bytes,
                                      int copies, int64_t capacity) {
  TESSERA_CHECK(copies * kStagingAlignment <= capacity);
  std::vector<StagingRound> rounds;
  int64_t used = capacity;
  for (int part = 0; part < static_cast<int>(part_bytes.size()); ++part) {
    for (int64_t begin = 0; begin < part_bytes[part];) {
      if (used + copies * kStagingAlignment > capacity) {
        rounds.emplace_back();
        used = 0;
      }
      const int64_t room =
          (capacity - used) / copies / kStagingAlignment * kStagingAlignment;
      const int64_t length = std::min(room, part_bytes[part] - begin);
      rounds.back().push_back({part, begin, length, used});
      used += copies * RoundUpStaging(length);
      begin += length;
    }
  }
  return rounds;
}

}  // namespace tessera
