#include "tools/peak_flops.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/fma_peak.h"

namespace tessera {
namespace {

std::vector<int> CoresOfThisProcess() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

RankPeak MeasureRankPeak(int num_threads) {
  return {HostName(), CoresOfThisProcess(), num_threads,
          MeasureFmaPeak(num_threads)};
}

std::string RankPeakText(const RankPeak& peak) {
  return absl::StrFormat("%d %.0f %s %s", peak.num_threads, peak.flops,
                         absl::StrJoin(peak.cores, ","), peak.host);
}

absl::StatusOr<RankPeak> ParseRankPeak(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 3));
  RankPeak peak;
  bool good = parts.size() == 4 &&
              absl::SimpleAtoi(parts[0], &peak.num_threads) &&
              absl::SimpleAtod(parts[1], &peak.flops);
  if (good && !parts[2].empty()) {
    for (const std::string& part :
         std::vector<std::string>(absl::StrSplit(parts[2], ','))) {
      good = absl::SimpleAtoi(part, &peak.cores.emplace_back()) && good;
    }
  }
  if (!good) {
    return absl::InternalError(absl::StrCat(
        "peak: wanted \"THREADS FLOPS CORES HOST\", got \"", text, "\""));
  }
  peak.host = parts[3];
  return peak;
}

double PeakOfRanks(const std::vector<RankPeak>& ranks) {
  struct Host {
    std::set<int> cores;
    int num_threads = 0;
    double flops = 0;
  };
  std::map<std::string, Host> hosts;
  for (const RankPeak& rank : ranks) {
    Host& host = hosts[rank.host];
    host.cores.insert(rank.cores.begin(), rank.cores.end());
    host.num_threads += rank.num_threads;
    host.flops += rank.flops;
  }
  double sum = 0;
  for (const auto& [name, host] : hosts) {
    const auto num_cores = static_cast<double>(host.cores.size());
    const double share = num_cores / std::max(host.num_threads, 1);
    // Without cores nothing is known of them.
    sum += host.flops * (num_cores > 0 ? std::min(share, 1.0) : 1.0);
  }
  return sum;
}

}  // namespace tessera
