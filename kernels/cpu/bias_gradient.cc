// Sums of columns: a vector of columns walks down all rows, in blocks whose
// sums are added up, so that rounding errors stay small.
#include <algorithm>
#include <cstdint>

#include "kernels/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/bias_gradient.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

constexpr int64_t kRowsOfBlock = 64;

// Columns [begin, begin + 1 vector) of x, of which `count` exist.
template <typename C, typename T>
HWY_INLINE void SumColumns(const TensorView& x, int64_t begin, int64_t count,
                           bool accumulate, C* out) {
  const hn::ScalableTag<C> d;
  auto total = accumulate ? LoadFirst(d, out, count) : hn::Zero(d);
  for (int64_t row = 0; row < x.sizes[0]; row += kRowsOfBlock) {
    const int64_t end = std::min(row + kRowsOfBlock, x.sizes[0]);
    auto sum = hn::Zero(d);
    for (int64_t r = row; r < end; ++r) {
      const T* at = x.as<T>() + r * x.strides[0] + begin;
      sum = hn::Add(sum, LoadFirst(d, at, count));
    }
    total = hn::Add(total, sum);
  }
  StoreFirst(total, d, out, count);
}

void SumColumnsBetween(const BiasGradientArgs& args, int64_t begin,
                       int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const hn::ScalableTag<C> d;
    ForEachVector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
      SumColumns<C, T>(args.x, begin + i, n, args.accumulate,
                       args.out.as<C>() + begin + i);
    });
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(SumColumnsBetween);

absl::Status BiasGradient(const BiasGradientArgs& args, const Launch& launch) {
  constexpr int64_t kColsOfPart = 64;
  const int64_t num_cols = args.out.sizes[0];
  const int64_t num_parts = (num_cols + kColsOfPart - 1) / kColsOfPart;
#pragma omp parallel for num_threads(launch.num_threads) schedule(static)
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t begin = part * kColsOfPart;
    HWY_DYNAMIC_DISPATCH(SumColumnsBetween)
    (args, begin, std::min(begin + kColsOfPart, num_cols));
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
