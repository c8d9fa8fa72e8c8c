#include "kernels/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fma_peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Enough sums that never wait for each other: latency 4, two units a core.
constexpr int kNumSums = 12;

// Does `num_rounds` rounds, and returns the operations done. `sink` keeps them
// from being left out.
int64_t DoFmas(int64_t num_rounds, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const V factor = hn::Set(d, 0.999f);
  const V term = hn::Set(d, 0.001f);
  V sums[kNumSums];
  for (V& sum : sums) sum = hn::Set(d, *sink);
  for (int64_t i = 0; i < num_rounds; ++i) {
#pragma GCC unroll 12
    for (V& sum : sums) sum = hn::MulAdd(sum, factor, term);
  }
  V total = sums[0];
  for (int s = 1; s < kNumSums; ++s) total = hn::Add(total, sums[s]);
  *sink = hn::GetLane(total);
  return num_rounds * kNumSums * static_cast<int64_t>(hn::Lanes(d)) * 2;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
HWY_EXPORT(DoFmas);

double MeasureFmaPeak(int num_threads, int milliseconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(num_threads, 0);
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&rates, t, milliseconds] {
      constexpr int64_t kRounds = 20000;
      float sink = static_cast<float>(t);
      const Clock::time_point end =
          Clock::now() + std::chrono::milliseconds(milliseconds);
      // The best of short pieces: another process may take a part of the time.
      for (Clock::time_point now = Clock::now(); now < end;) {
        const int64_t flops = HWY_DYNAMIC_DISPATCH(DoFmas)(kRounds, &sink);
        const Clock::time_point then = now;
        now = Clock::now();
        const std::chrono::duration<double> seconds = now - then;
        rates[t] =
            std::max(rates[t], static_cast<double>(flops) / seconds.count());
      }
      volatile float kept = sink;
      (void)kept;
    });
  }
  double sum = 0;
  for (std::thread& thread : threads) thread.join();
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace tessera
#endif  // HWY_ONCE
