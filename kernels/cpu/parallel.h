// Deals a range out to a team of threads. Only for files built with OpenMP.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::cpu {

// Work on fewer elements than this is not worth another thread.
inline constexpr int64_t kElementsPerThread = 16384;

// Calls f(begin, end) for consecutive parts of [0, n), each of at least about
// `grain`, on at most `num_threads` threads. f does not throw.
template <typename F>
void ParallelRanges(int64_t n, int64_t grain, int num_threads, F&& f) {
  if (n <= 0) return;
  const int64_t parts = std::clamp<int64_t>(n / grain, 1, num_threads);
  if (parts == 1) {
    f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) \
    schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    f(n * part / parts, n * (part + 1) / parts);
  }
}

}  // namespace tessera::cpu
