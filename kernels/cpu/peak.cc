#include "kernels/peak.h"

#include <algorithm>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Enough independent sums for two units of four cycles' latency.
constexpr int kSums = 12;

// Does `n` steps; returns the operations made. `out` keeps them alive.
double FusedMultiplyAdds(int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Set(d, 1.0f);
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.001f);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) {
      sums[s] = hn::MulAdd(sums[s], factor, term);
    }
  }
  for (const auto& sum : sums) *out += hn::GetLane(hn::SumOfLanes(d, sum));
  return 2.0 * kSums * hn::Lanes(d) * static_cast<double>(n);
}

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
HWY_EXPORT(FusedMultiplyAdds);

double MeasurePeakFlops() {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  float sink = 0;
  for (int i = 0; i < 10; ++i) {
    const auto start = Clock::now();
    const double flops =
        HWY_DYNAMIC_DISPATCH(FusedMultiplyAdds)(4000000, &sink);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, flops / seconds.count());
  }
  benchmark::DoNotOptimize(sink);
  return best;
}

}  // namespace tessera
#endif  // HWY_ONCE
