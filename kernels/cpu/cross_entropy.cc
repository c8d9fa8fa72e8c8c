// Cross entropy: forward reads a row of logits from memory once, a block at a
// time, the sum rescaled when a block's maximum is larger than all before;
// backward reads and writes it once.
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Comes first, since it includes this file for each instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Logits of a block stay in the first-level cache between its two readings.
constexpr int64_t kBlock = 2048;

template <typename C, typename T>
HWY_INLINE C MaxOf(const T* x, int64_t n) {
  const hn::ScalableTag<C> d;
  const int64_t lanes = hn::Lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<C>::infinity());
  auto largest = lowest;
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    auto v = LoadFirst(d, x + i, count);
    if (count < lanes) v = hn::IfThenElse(hn::FirstN(d, count), v, lowest);
    largest = hn::Max(largest, v);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// e^v; float32 within 1e-7 relative, float64 by the C library. NaN stays NaN,
// which Highway's Exp alone would turn into 0.
template <class D>
HWY_INLINE hn::Vec<D> ExpOf(D d, hn::Vec<D> v) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::IfThenElse(hn::IsNaN(v), v, hn::Exp(d, v));
  } else {
    HWY_ALIGN double lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = std::exp(lanes[i]);
    return hn::Load(d, lanes);
  }
}

template <typename C, typename T>
HWY_INLINE C SumOfExp(const T* x, int64_t n, C shift) {
  const hn::ScalableTag<C> d;
  const int64_t lanes = hn::Lanes(d);
  const auto vshift = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    auto e = ExpOf(d, hn::Sub(LoadFirst(d, x + i, count), vshift));
    if (count < lanes) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
    sum = hn::Add(sum, e);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <typename C, typename T>
C LogSumExp(const T* x, int64_t n) {
  C largest = -std::numeric_limits<C>::infinity();
  C sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const C block_max = MaxOf<C>(x + begin, count);
    if (block_max > largest) {
      sum *= std::exp(largest - block_max);
      largest = block_max;
    }
    // A row of -inf has no shift; NaN spreads through the sum.
    const C shift = std::isinf(largest) && largest < 0 ? C{0} : largest;
    sum += SumOfExp<C>(x + begin, count, shift);
  }
  const C shift = std::isinf(largest) && largest < 0 ? C{0} : largest;
  return shift + std::log(sum);
}

// Writes the log-sum-exp of rows [begin, end) that count.
void LogSumExpRows(const CrossEntropyArgs& args, void* logsumexp, int64_t begin,
                   int64_t end) {
  const int64_t* targets = args.targets.as<int64_t>();
  VisitFloating(args.logits.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    for (int64_t r = begin; r < end; ++r) {
      const bool ignored =
          targets[r * args.targets.stride(0)] == args.ignore_index;
      static_cast<C*>(logsumexp)[r] =
          ignored
              ? C{0}
              : LogSumExp<C>(args.logits.as<T>() + r * args.logits.stride(0),
                             args.logits.size(1));
    }
  });
}

template <typename C>
struct RowOfLoss {
  C logsumexp;
  C factor;
  int64_t target;
};

// One row; `to` may be `from` or elements of a smaller type at its start: each
// vector is read before it, or anything after it, is written.
template <typename C, typename T, typename G>
HWY_INLINE void SoftmaxGradient(const T* from, int64_t n, RowOfLoss<C> row,
                                G* to) {
  const hn::ScalableTag<C> d;
  const C logit = static_cast<C>(from[row.target]);
  const auto shift = hn::Set(d, row.logsumexp);
  const auto factor = hn::Set(d, row.factor);
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto p = ExpOf(d, hn::Sub(LoadFirst(d, from + i, count), shift));
    StoreFirst(hn::Mul(p, factor), d, to + i, count);
  });
  const C p = std::exp(logit - row.logsumexp);
  to[row.target] = static_cast<G>((p - C{1}) * row.factor);
}

template <typename C, typename T, typename G>
void SoftmaxGradientRows(const CrossEntropyBackwardArgs& args, C factor,
                         int64_t begin, int64_t end) {
  const int64_t cols = args.logits.size(1);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t target =
        args.targets.as<int64_t>()[r * args.targets.stride(0)];
    G* to = args.grad_logits.as<G>() + r * args.grad_logits.stride(0);
    if (target == args.ignore_index) {
      std::fill_n(to, cols, static_cast<G>(0.0f));
      continue;
    }
    SoftmaxGradient<C>(args.logits.as<T>() + r * args.logits.stride(0), cols,
                       {args.logsumexp.as<C>()[r], factor, target}, to);
  }
}

void GradientRows(const CrossEntropyBackwardArgs& args, double scale,
                  int64_t begin, int64_t end) {
  VisitFloating(args.logits.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const C factor = static_cast<C>(args.grad_loss.as<C>()[0] * scale);
    if (args.grad_logits.dtype == args.logits.dtype) {
      SoftmaxGradientRows<C, T, T>(args, factor, begin, end);
    } else if constexpr (std::is_same_v<T, float>) {
      if (args.grad_logits.dtype == DType::kBFloat16) {
        SoftmaxGradientRows<C, T, bfloat16>(args, factor, begin, end);
      } else {
        SoftmaxGradientRows<C, T, float16>(args, factor, begin, end);
      }
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera::cpu {

HWY_EXPORT(LogSumExpRows);
HWY_EXPORT(GradientRows);

namespace {

absl::Status CheckTargets(const char* operation, const TensorView& targets,
                          int64_t num_classes, int64_t ignore_index) {
  for (int64_t i = 0; i < targets.size(0); ++i) {
    const int64_t target = targets.as<int64_t>()[i * targets.stride(0)];
    if (target == ignore_index || (target >= 0 && target < num_classes)) {
      continue;
    }
    return absl::OutOfRangeError(
        absl::StrCat(operation, ": target ", target, " at position ", i, " of ",
                     targets.size(0), " is neither below the vocabulary size ",
                     num_classes, " nor the ignored ", ignore_index));
  }
  return absl::OkStatus();
}

double ScaleOf(const TensorView& counted, int64_t ignore_index, double scale) {
  if (counted.num_dims == 0) return scale;
  int64_t count = 0;
  for (int64_t i = 0; i < counted.size(0); ++i) {
    if (counted.as<int64_t>()[i * counted.stride(0)] != ignore_index) ++count;
  }
  return count == 0 ? 0.0 : scale / static_cast<double>(count);
}

template <typename F>
void ForRows(int64_t rows, int num_threads, F&& f) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t r = 0; r < rows; ++r) f(r, r + 1);
}

template <typename T, typename C>
void AddLoss(const CrossEntropyArgs& args, const C* logsumexp) {
  double sum = 0.0;
  for (int64_t r = 0; r < args.logits.size(0); ++r) {
    const int64_t target =
        args.targets.as<int64_t>()[r * args.targets.stride(0)];
    if (target == args.ignore_index) continue;
    const C logit =
        static_cast<C>(args.logits.as<T>()[r * args.logits.stride(0) + target]);
    sum += static_cast<double>(logsumexp[r]) - static_cast<double>(logit);
  }
  const double scale = ScaleOf(args.counted, args.ignore_index, args.scale);
  C* loss = args.loss.as<C>();
  const double before = args.accumulate ? static_cast<double>(*loss) : 0.0;
  *loss = static_cast<C>(before + sum * scale);
}

}  // namespace

absl::Status CrossEntropy(const CrossEntropyArgs& args, const Launch& launch) {
  const int64_t rows = args.logits.size(0);
  RETURN_IF_ERROR(CheckTargets("CrossEntropy", args.targets,
                               args.logits.size(1), args.ignore_index));
  const bool own = !args.logsumexp.defined();
  const ScratchBuffer buffer(launch, own ? rows * 8 : 0);
  void* logsumexp = own ? buffer.as<void>() : args.logsumexp.data;
  ForRows(rows, launch.num_threads, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LogSumExpRows)(args, logsumexp, begin, end);
  });
  VisitFloating(args.logits.dtype, [&]<typename T>() {
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    AddLoss<T>(args, static_cast<const C*>(logsumexp));
  });
  return absl::OkStatus();
}

absl::Status CrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                                  const Launch& launch) {
  RETURN_IF_ERROR(CheckTargets("CrossEntropyBackward", args.targets,
                               args.logits.size(1), args.ignore_index));
  const double scale = ScaleOf(args.counted, args.ignore_index, args.scale);
  ForRows(args.logits.size(0), launch.num_threads,
          [&](int64_t begin, int64_t end) {
            HWY_DYNAMIC_DISPATCH(GradientRows)(args, scale, begin, end);
          });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
