#include "kernels/cpu/reduce_runs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce_runs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Additions that are on their way at once.
constexpr int kChains = 4;
// Rows that are added up before their sum joins the total: shorter chains of
// roundings.
constexpr int64_t kRowsAtOnce = 64;

template <typename T>
double SumRun(const T* x, int64_t n) {
  const hn::ScalableTag<ComputeType<T>> d;
  const int64_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  int64_t i = 0;
  for (; i + kChains * lanes <= n; i += kChains * lanes) {
    sum0 = hn::Add(sum0, LoadVector(d, x + i));
    sum1 = hn::Add(sum1, LoadVector(d, x + i + lanes));
    sum2 = hn::Add(sum2, LoadVector(d, x + i + 2 * lanes));
    sum3 = hn::Add(sum3, LoadVector(d, x + i + 3 * lanes));
  }
  for (; i < n; i += lanes) {
    sum0 = hn::Add(sum0, LoadFirst(d, x + i, std::min(lanes, n - i)));
  }
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
}

template <bool kMagnitude, typename T>
double MaxRun(const T* x, int64_t n) {
  const hn::ScalableTag<ComputeType<T>> d;
  using Float = ComputeType<T>;
  const auto least = hn::Set(
      d, kMagnitude ? Float{0} : -std::numeric_limits<Float>::infinity());
  auto largest = least;
  auto nans = hn::Zero(d);
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    auto v = LoadFirst(d, x + i, count);
    if (kMagnitude) v = hn::Abs(v);
    v = hn::IfThenElse(hn::FirstN(d, count), v, least);
    nans = hn::Or(nans, hn::IfThenElseZero(hn::IsNaN(v), v));
    largest = hn::Max(largest, v);
  });
  if (!hn::AllFalse(d, hn::IsNaN(nans))) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<double>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

double FindReduceRun(ReduceKind op, DType dtype, const void* x, int64_t n) {
  return VisitFloating(dtype, [&]<typename T>() {
    const T* values = static_cast<const T*>(x);
    switch (op) {
      case ReduceKind::kSum:
        return SumRun(values, n);
      case ReduceKind::kMax:
        return MaxRun<false>(values, n);
      case ReduceKind::kMaxMagnitude:
        return MaxRun<true>(values, n);
    }
    return 0.0;
  });
}

// sums[0 ... count) += the rows of a strip of columns one vector wide.
template <class D, typename T>
void AddStrip(D d, const ColumnSums& args, const T* x, hn::TFromD<D>* sums,
              int64_t count) {
  auto total = LoadFirst(d, sums, count);
  for (int64_t begin = 0; begin < args.num_rows; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, args.num_rows);
    auto part = hn::Zero(d);
    for (int64_t row = begin; row < end; ++row) {
      part = hn::Add(part, LoadFirst(d, x + row * args.row_stride, count));
    }
    total = hn::Add(total, part);
  }
  StoreFirst(total, d, sums, count);
}

// The same for kChains vectors, each of which gets the bits that AddStrip
// gives.
template <class D, typename T>
void AddWideStrip(D d, const ColumnSums& args, const T* x,
                  hn::TFromD<D>* sums) {
  const int64_t lanes = hn::Lanes(d);
  for (int64_t begin = 0; begin < args.num_rows; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, args.num_rows);
    auto part0 = hn::Zero(d);
    auto part1 = part0;
    auto part2 = part0;
    auto part3 = part0;
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x + row * args.row_stride;
      part0 = hn::Add(part0, LoadVector(d, from));
      part1 = hn::Add(part1, LoadVector(d, from + lanes));
      part2 = hn::Add(part2, LoadVector(d, from + 2 * lanes));
      part3 = hn::Add(part3, LoadVector(d, from + 3 * lanes));
    }
    hn::StoreU(hn::Add(hn::LoadU(d, sums), part0), d, sums);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + lanes), part1), d, sums + lanes);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + 2 * lanes), part2), d,
               sums + 2 * lanes);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + 3 * lanes), part3), d,
               sums + 3 * lanes);
  }
}

void FindAddColumnSums(DType dtype, const ColumnSums& args) {
  VisitFloating(dtype, [&]<typename T>() {
    const hn::ScalableTag<ComputeType<T>> d;
    const int64_t lanes = hn::Lanes(d);
    const T* x = static_cast<const T*>(args.x);
    auto* sums = static_cast<ComputeType<T>*>(args.sums);
    int64_t column = 0;
    for (; column + kChains * lanes <= args.num_columns;
         column += kChains * lanes) {
      AddWideStrip(d, args, x + column, sums + column);
    }
    for (; column < args.num_columns; column += lanes) {
      AddStrip(d, args, x + column, sums + column,
               std::min(lanes, args.num_columns - column));
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(FindReduceRun);
HWY_EXPORT(FindAddColumnSums);

double ReduceRun(ReduceKind op, DType dtype, const void* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(FindReduceRun)(op, dtype, x, n);
}
void AddColumnSums(DType dtype, const ColumnSums& args) {
  HWY_DYNAMIC_DISPATCH(FindAddColumnSums)(dtype, args);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
