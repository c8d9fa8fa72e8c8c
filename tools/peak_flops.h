// What all ranks together can compute in a second, for the share that a run
// makes of it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// What one rank has measured, each thread as if it had a core of its own.
struct RankPeak {
  std::string host;
  std::vector<int> cores;  // That its threads may run on.
  int num_threads = 1;
  double flops = 0;  // A second, of all its threads.
};

// Measures this rank, for some 40 ms.
RankPeak MeasureRankPeak(int num_threads);

// One line, and back.
std::string RankPeakText(const RankPeak& peak);
absl::StatusOr<RankPeak> ParseRankPeak(const std::string& text);

// The sum over ranks; where a host has more threads than cores, they share.
double PeakOfRanks(const std::vector<RankPeak>& ranks);

}  // namespace tessera
