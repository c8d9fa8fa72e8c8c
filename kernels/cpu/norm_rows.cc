// Norms, a row at a time: a row is read from memory once and stays in cache
// for its statistics, its result or its gradient.
#include "kernels/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Means of the row: of x, and of x's squared distance from `center`.
template <typename C, typename T>
HWY_INLINE C MeanOf(const T* x, int64_t cols) {
  const hn::ScalableTag<C> d;
  auto sum = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    sum = hn::Add(sum, LoadFirst(d, x + i, n));
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<C>(cols);
}

template <typename C, typename T>
HWY_INLINE C MeanSquareOf(const T* x, int64_t cols, C center) {
  const hn::ScalableTag<C> d;
  const int64_t lanes = hn::Lanes(d);
  const auto mean = hn::Set(d, center);
  auto sum = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    auto v = hn::Sub(LoadFirst(d, x + i, n), mean);
    if (n < lanes) v = hn::IfThenElseZero(hn::FirstN(d, n), v);
    sum = hn::MulAdd(v, v, sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<C>(cols);
}

template <typename C>
struct RowStatistics {
  C mean;
  C rstd;
};

// In the compute type; null where there is none.
template <typename C>
struct Parameters {
  const C* weight;
  const C* bias;
};

// y = (x - mean) * rstd * weight + bias.
template <typename C, typename T>
HWY_INLINE void Normalize(const T* x, int64_t cols, RowStatistics<C> row,
                          Parameters<C> parameters, T* y) {
  const hn::ScalableTag<C> d;
  const auto mean = hn::Set(d, row.mean);
  const auto rstd = hn::Set(d, row.rstd);
  const C* bias = parameters.bias;
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto centered = hn::Sub(LoadFirst(d, x + i, n), mean);
    const auto scaled = hn::Mul(centered, rstd);
    const auto w = LoadFirst(d, parameters.weight + i, n);
    const auto result = bias == nullptr
                            ? hn::Mul(scaled, w)
                            : hn::MulAdd(scaled, w, LoadFirst(d, bias + i, n));
    StoreFirst(result, d, y + i, n);
  });
}

// What one row of backward reads and writes; null pointers are left out.
template <typename C, typename T>
struct BackwardPointers {
  const T* x;
  const T* grad_y;
  T* grad_x;
  const C* weight;
  C* weight_sum;
  C* bias_sum;
};

// With h = (x - mean) * rstd and g = grad_y * weight:
// grad_x = rstd * (g - mean(g) - h * mean(g * h)); without centering (RMS
// norm) the middle term is absent. Adds grad_y * h and grad_y to the sums of
// weight and bias.
template <bool kCentered, typename C, typename T>
HWY_INLINE void BackwardRow(const BackwardPointers<C, T>& p, int64_t cols,
                            RowStatistics<C> row) {
  const hn::ScalableTag<C> d;
  const auto mean = hn::Set(d, row.mean);
  const auto rstd = hn::Set(d, row.rstd);
  auto sum_g = hn::Zero(d);
  auto sum_gh = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto dy = LoadFirst(d, p.grad_y + i, n);
    const auto h = hn::Mul(hn::Sub(LoadFirst(d, p.x + i, n), mean), rstd);
    const auto g = hn::Mul(dy, LoadFirst(d, p.weight + i, n));
    if (kCentered) sum_g = hn::Add(sum_g, g);
    sum_gh = hn::MulAdd(g, h, sum_gh);
    if (p.weight_sum != nullptr) {
      const auto sum = LoadFirst(d, p.weight_sum + i, n);
      StoreFirst(hn::MulAdd(dy, h, sum), d, p.weight_sum + i, n);
    }
    if (p.bias_sum != nullptr) {
      const auto sum = LoadFirst(d, p.bias_sum + i, n);
      StoreFirst(hn::Add(dy, sum), d, p.bias_sum + i, n);
    }
  });
  if (p.grad_x == nullptr) return;
  const auto share = hn::Set(d, C{1} / static_cast<C>(cols));
  const auto mean_g = hn::Mul(hn::SumOfLanes(d, sum_g), share);
  const auto mean_gh = hn::Mul(hn::SumOfLanes(d, sum_gh), share);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto dy = LoadFirst(d, p.grad_y + i, n);
    const auto h = hn::Mul(hn::Sub(LoadFirst(d, p.x + i, n), mean), rstd);
    auto g = hn::Mul(dy, LoadFirst(d, p.weight + i, n));
    if (kCentered) g = hn::Sub(g, mean_g);
    g = hn::NegMulAdd(h, mean_gh, g);
    StoreFirst(hn::Mul(g, rstd), d, p.grad_x + i, n);
  });
}

void LayerNormRowsOf(const LayerNormArgs& args, const void* weight,
                     const void* bias, int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    const Parameters<C> parameters = {static_cast<const C*>(weight),
                                      static_cast<const C*>(bias)};
    for (int64_t r = begin; r < end; ++r) {
      const T* x = args.x.as<T>() + r * args.x.stride(0);
      const C mean = MeanOf<C>(x, cols);
      const C variance = MeanSquareOf<C>(x, cols, mean);
      const C rstd = C{1} / std::sqrt(variance + static_cast<C>(args.eps));
      Normalize<C>(x, cols, {mean, rstd}, parameters,
                   args.y.as<T>() + r * args.y.stride(0));
      if (args.mean.defined()) args.mean.as<C>()[r] = mean;
      if (args.rstd.defined()) args.rstd.as<C>()[r] = rstd;
    }
  });
}

void RmsNormRowsOf(const RmsNormArgs& args, const void* weight, int64_t begin,
                   int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    const Parameters<C> parameters = {static_cast<const C*>(weight), nullptr};
    for (int64_t r = begin; r < end; ++r) {
      const T* x = args.x.as<T>() + r * args.x.stride(0);
      const C mean_square = MeanSquareOf<C>(x, cols, C{0});
      const C rstd = C{1} / std::sqrt(mean_square + static_cast<C>(args.eps));
      Normalize<C>(x, cols, {C{0}, rstd}, parameters,
                   args.y.as<T>() + r * args.y.stride(0));
      if (args.rstd.defined()) args.rstd.as<C>()[r] = rstd;
    }
  });
}

// Rows [begin, end) of either norm; RMS norm has no `mean`. Zeroes the sums
// first.
template <typename T, typename Args>
void BackwardRows(const Args& args, const NormSums& sums, int64_t begin,
                  int64_t end) {
  constexpr bool kCentered = std::is_same_v<Args, LayerNormBackwardArgs>;
  using C = ComputeType<T>;
  const int64_t cols = args.x.size(1);
  C* weight_sum = static_cast<C*>(sums.weight_sum);
  C* bias_sum = static_cast<C*>(sums.bias_sum);
  if (weight_sum != nullptr) std::fill_n(weight_sum, cols, C{0});
  if (bias_sum != nullptr) std::fill_n(bias_sum, cols, C{0});
  for (int64_t r = begin; r < end; ++r) {
    RowStatistics<C> row = {C{0}, args.rstd.template as<C>()[r]};
    if constexpr (kCentered) row.mean = args.mean.template as<C>()[r];
    T* grad_x = args.grad_x.template as<T>();
    if (grad_x != nullptr) grad_x += r * args.grad_x.stride(0);
    const BackwardPointers<C, T> pointers = {
        args.x.template as<T>() + r * args.x.stride(0),
        args.grad_y.template as<T>() + r * args.grad_y.stride(0),
        grad_x,
        static_cast<const C*>(sums.weight),
        weight_sum,
        bias_sum};
    BackwardRow<kCentered>(pointers, cols, row);
  }
}

void LayerNormBackwardRowsOf(const LayerNormBackwardArgs& args,
                             const NormSums& sums, int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    BackwardRows<T>(args, sums, begin, end);
  });
}

void RmsNormBackwardRowsOf(const RmsNormBackwardArgs& args,
                           const NormSums& sums, int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    BackwardRows<T>(args, sums, begin, end);
  });
}

template <typename C>
HWY_INLINE void AddPartsOf(const NormParts& parts, bool accumulate, C* to) {
  const hn::ScalableTag<C> d;
  const C* data = static_cast<const C*>(parts.data);
  ForEachVector(d, parts.cols, [&](int64_t i, int64_t n) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t b = 0; b < parts.num_parts; ++b) {
      sum = hn::Add(sum, LoadFirst(d, data + b * parts.cols + i, n));
    }
    if (accumulate) sum = hn::Add(LoadFirst(d, to + i, n), sum);
    StoreFirst(sum, d, to + i, n);
  });
}

void AddAllParts(const NormParts& parts, bool accumulate,
                 const TensorView& to) {
  if (to.dtype == DType::kFloat64) {
    AddPartsOf(parts, accumulate, to.as<double>());
  } else {
    AddPartsOf(parts, accumulate, to.as<float>());
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(LayerNormRowsOf);
HWY_EXPORT(RmsNormRowsOf);
HWY_EXPORT(LayerNormBackwardRowsOf);
HWY_EXPORT(RmsNormBackwardRowsOf);
HWY_EXPORT(AddAllParts);

void LayerNormRows(const LayerNormArgs& args, const void* weight,
                   const void* bias, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormRowsOf)(args, weight, bias, begin, end);
}

void RmsNormRows(const RmsNormArgs& args, const void* weight, int64_t begin,
                 int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowsOf)(args, weight, begin, end);
}

void LayerNormBackwardRows(const LayerNormBackwardArgs& args,
                           const NormSums& sums, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackwardRowsOf)(args, sums, begin, end);
}

void RmsNormBackwardRows(const RmsNormBackwardArgs& args, const NormSums& sums,
                         int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackwardRowsOf)(args, sums, begin, end);
}

void AddParts(const NormParts& parts, bool accumulate, const TensorView& to) {
  HWY_DYNAMIC_DISPATCH(AddAllParts)(parts, accumulate, to);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
