// Optimizer steps: each element is read once, updated in vectors of the compute
// type, and written once, so memory alone sets the speed.
#include "kernels/optimizer.h"

#include <atomic>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Calls f with a null pointer to the shadow's type: T itself where there is
// none.
template <typename T, typename F>
HWY_INLINE void VisitShadow(const OptimizerSegment& segment, F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (segment.shadow != nullptr) {
      if (segment.shadow_dtype == DType::kBFloat16) {
        return f(static_cast<bfloat16*>(nullptr));
      }
      return f(static_cast<float16*>(nullptr));
    }
  }
  f(static_cast<T*>(nullptr));
}

// Writes a new parameter, and its shadow where S is not T.
template <typename T, typename S, class D>
HWY_INLINE void StoreParameter(hn::Vec<D> p, D d,
                               const OptimizerSegment& segment, int64_t i,
                               int64_t n) {
  StoreFirst(p, d, static_cast<T*>(segment.parameter) + i, n);
  if constexpr (!std::is_same_v<S, T>) {
    StoreFirst(p, d, static_cast<S*>(segment.shadow) + i, n);
  }
}

template <typename T, typename S>
void AdamWElements(const AdamWArgs& args, const AdamWSegment& segment,
                   int64_t begin, int64_t end) {
  using C = ComputeType<T>;
  const hn::ScalableTag<C> d;
  const auto constant = [d](double x)
                            HWY_ATTR { return hn::Set(d, static_cast<C>(x)); };
  const double step = static_cast<double>(segment.step);
  const double correction1 = 1 - std::pow(args.beta1, step);
  const double correction2 = 1 - std::pow(args.beta2, step);
  const auto scale = constant(args.grad_scale ? *args.grad_scale : 1.0);
  const auto decay = constant(args.lr * args.weight_decay);
  const auto beta1 = constant(args.beta1);
  const auto beta2 = constant(args.beta2);
  const auto rest1 = constant(1 - args.beta1);
  const auto rest2 = constant(1 - args.beta2);
  const auto step_size = constant(args.lr / correction1);
  const auto root_factor = constant(1 / std::sqrt(correction2));
  const auto eps = constant(args.eps);
  const T* parameter = static_cast<const T*>(segment.parameter);
  const C* gradient = static_cast<const C*>(segment.gradient);
  C* exp_avg = static_cast<C*>(segment.exp_avg);
  C* exp_avg_sq = static_cast<C*>(segment.exp_avg_sq);
  ForEachVector(d, end - begin, [&](int64_t offset, int64_t n) HWY_ATTR {
    const int64_t i = begin + offset;
    const auto g = hn::Mul(scale, LoadFirst(d, gradient + i, n));
    auto p = LoadFirst(d, parameter + i, n);
    auto m = LoadFirst(d, exp_avg + i, n);
    auto v = LoadFirst(d, exp_avg_sq + i, n);
    p = hn::NegMulAdd(decay, p, p);
    m = hn::MulAdd(rest1, g, hn::Mul(beta1, m));
    v = hn::MulAdd(hn::Mul(rest2, g), g, hn::Mul(beta2, v));
    const auto denominator = hn::MulAdd(hn::Sqrt(v), root_factor, eps);
    p = hn::NegMulAdd(step_size, hn::Div(m, denominator), p);
    StoreFirst(m, d, exp_avg + i, n);
    StoreFirst(v, d, exp_avg_sq + i, n);
    StoreParameter<T, S>(p, d, segment, i, n);
  });
}

void AdamWRange(const AdamWArgs& args, const AdamWSegment& segment,
                int64_t begin, int64_t end) {
  VisitFloating(segment.dtype, [&]<typename T>() {
    VisitShadow<T>(segment, [&]<typename S>(S*) {
      AdamWElements<T, S>(args, segment, begin, end);
    });
  });
}

template <typename T, typename S>
void SgdElements(const SgdArgs& args, const SgdSegment& segment, int64_t begin,
                 int64_t end) {
  using C = ComputeType<T>;
  const hn::ScalableTag<C> d;
  const auto constant = [d](double x)
                            HWY_ATTR { return hn::Set(d, static_cast<C>(x)); };
  const auto scale = constant(args.grad_scale ? *args.grad_scale : 1.0);
  const auto decay = constant(args.weight_decay);
  const auto lr = constant(args.lr);
  const auto momentum = constant(args.momentum);
  const auto rest = constant(1 - args.dampening);
  const T* parameter = static_cast<const T*>(segment.parameter);
  const C* gradient = static_cast<const C*>(segment.gradient);
  C* buffer = static_cast<C*>(segment.momentum_buffer);
  ForEachVector(d, end - begin, [&](int64_t offset, int64_t n) HWY_ATTR {
    const int64_t i = begin + offset;
    auto g = hn::Mul(scale, LoadFirst(d, gradient + i, n));
    const auto p = LoadFirst(d, parameter + i, n);
    if (args.weight_decay != 0) g = hn::MulAdd(decay, p, g);
    if (buffer != nullptr) {
      auto b = g;
      if (!segment.first) {
        const auto old = LoadFirst(d, buffer + i, n);
        b = hn::MulAdd(rest, g, hn::Mul(momentum, old));
      }
      StoreFirst(b, d, buffer + i, n);
      g = args.nesterov ? hn::MulAdd(momentum, b, g) : b;
    }
    StoreParameter<T, S>(hn::NegMulAdd(lr, g, p), d, segment, i, n);
  });
}

void SgdRange(const SgdArgs& args, const SgdSegment& segment, int64_t begin,
              int64_t end) {
  VisitFloating(segment.dtype, [&]<typename T>() {
    VisitShadow<T>(segment, [&]<typename S>(S*) {
      SgdElements<T, S>(args, segment, begin, end);
    });
  });
}

template <typename C>
void UnscaleElements(const UnscaleArgs& args, const UnscaleSegment& segment,
                     int64_t begin, int64_t end) {
  const hn::ScalableTag<C> d;
  const auto factor = hn::Set(d, static_cast<C>(args.factor));
  C* gradient = static_cast<C*>(segment.gradient);
  auto all_finite = hn::Eq(factor, factor);
  ForEachVector(d, end - begin, [&](int64_t offset, int64_t n) HWY_ATTR {
    const auto g = LoadFirst(d, gradient + begin + offset, n);
    all_finite = hn::And(all_finite, hn::IsFinite(g));
    StoreFirst(hn::Mul(g, factor), d, gradient + begin + offset, n);
  });
  if (!hn::AllTrue(d, all_finite)) {
    std::atomic_ref<float>(*args.found_inf)
        .store(1.0f, std::memory_order_relaxed);
  }
}

void UnscaleRange(const UnscaleArgs& args, const UnscaleSegment& segment,
                  int64_t begin, int64_t end) {
  if (segment.dtype == DType::kFloat64) {
    UnscaleElements<double>(args, segment, begin, end);
  } else {
    UnscaleElements<float>(args, segment, begin, end);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(AdamWRange);
HWY_EXPORT(SgdRange);
HWY_EXPORT(UnscaleRange);

namespace {

// Threads take whole blocks of a segment, so that vectors stay as aligned as
// the segment is.
constexpr int64_t kBlock = 64;

template <typename Segment>
int64_t BlocksOf(const Segment& segment) {
  return (segment.num_elements + kBlock - 1) / kBlock;
}

// Calls f(segment, begin, end) for ranges that cover all segments, on a team.
template <typename Segment, typename F>
void ForSegments(const std::vector<Segment>& segments, const Launch& launch,
                 F&& f) {
  int64_t num_blocks = 0;
  for (const Segment& segment : segments) num_blocks += BlocksOf(segment);
  ParallelRanges(
      num_blocks, kElementsPerThread / kBlock, launch.num_threads,
      [&](int64_t begin, int64_t end) {
        int64_t first = 0;  // The segment's, counted over all segments.
        for (const Segment& segment : segments) {
          const int64_t from = std::max(begin, first) - first;
          const int64_t to = std::min(end, first + BlocksOf(segment)) - first;
          if (from < to) {
            f(segment, from * kBlock,
              std::min(to * kBlock, segment.num_elements));
          }
          first += BlocksOf(segment);
        }
      });
}

}  // namespace

absl::Status AdamW(const AdamWArgs& args, const Launch& launch) {
  ForSegments(args.segments, launch,
              [&](const AdamWSegment& segment, int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(AdamWRange)(args, segment, begin, end);
              });
  return absl::OkStatus();
}

absl::Status Sgd(const SgdArgs& args, const Launch& launch) {
  ForSegments(args.segments, launch,
              [&](const SgdSegment& segment, int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(SgdRange)(args, segment, begin, end);
              });
  return absl::OkStatus();
}

absl::Status Unscale(const UnscaleArgs& args, const Launch& launch) {
  ForSegments(args.segments, launch,
              [&](const UnscaleSegment& segment, int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(UnscaleRange)(args, segment, begin, end);
              });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
