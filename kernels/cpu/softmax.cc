// Softmax, a row at a time: the row stays in cache between its passes.
#include "kernels/softmax.h"

#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Lanes from `n` on replaced by `otherwise`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FirstOr(D d, V v, int64_t n, V otherwise) {
  return hn::IfThenElse(hn::FirstN(d, n), v, otherwise);
}

template <typename T>
void SoftmaxRow(const T* x, int64_t cols, T* y) {
  using C = ComputeType<T>;
  const hn::ScalableTag<C> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<C>::infinity());
  auto max = lowest;
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    max = hn::Max(max, FirstOr(d, LoadFirst(d, x + i, n), n, lowest));
  });
  max = hn::MaxOfLanes(d, max);
  auto sum = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto e = ExpOrNaN(d, hn::Sub(LoadFirst(d, x + i, n), max));
    sum = hn::Add(sum, FirstOr(d, e, n, hn::Zero(d)));
  });
  const auto inverse = hn::Div(hn::Set(d, C{1}), hn::SumOfLanes(d, sum));
  // Made again: a 16-bit y could not hold what lies between.
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto e = ExpOrNaN(d, hn::Sub(LoadFirst(d, x + i, n), max));
    StoreFirst(hn::Mul(e, inverse), d, y + i, n);
  });
}

template <typename T>
void SoftmaxBackwardRow(const T* y, const T* grad_y, int64_t cols, T* grad_x) {
  const hn::ScalableTag<ComputeType<T>> d;
  auto dot = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    dot = hn::MulAdd(LoadFirst(d, y + i, n), LoadFirst(d, grad_y + i, n), dot);
  });
  dot = hn::SumOfLanes(d, dot);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto centred = hn::Sub(LoadFirst(d, grad_y + i, n), dot);
    StoreFirst(hn::Mul(LoadFirst(d, y + i, n), centred), d, grad_x + i, n);
  });
}

void SoftmaxAt(const SoftmaxArgs& args, int64_t row) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    SoftmaxRow(args.x.as<T>() + row * args.x.strides[0], args.x.sizes[1],
               args.y.as<T>() + row * args.y.strides[0]);
  });
}

void SoftmaxBackwardAt(const SoftmaxBackwardArgs& args, int64_t row) {
  VisitFloating(args.y.dtype, [&]<typename T>() HWY_ATTR {
    SoftmaxBackwardRow(args.y.as<T>() + row * args.y.strides[0],
                       args.grad_y.as<T>() + row * args.grad_y.strides[0],
                       args.y.sizes[1],
                       args.grad_x.as<T>() + row * args.grad_x.strides[0]);
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(SoftmaxAt);
HWY_EXPORT(SoftmaxBackwardAt);

absl::Status Softmax(const SoftmaxArgs& args, const Launch& launch) {
  if (args.x.num_elements() == 0) return absl::OkStatus();
#pragma omp parallel for num_threads(launch.num_threads) schedule(static)
  for (int64_t row = 0; row < args.x.sizes[0]; ++row) {
    HWY_DYNAMIC_DISPATCH(SoftmaxAt)(args, row);
  }
  return absl::OkStatus();
}

absl::Status SoftmaxBackward(const SoftmaxBackwardArgs& args,
                             const Launch& launch) {
  if (args.y.num_elements() == 0) return absl::OkStatus();
#pragma omp parallel for num_threads(launch.num_threads) schedule(static)
  for (int64_t row = 0; row < args.y.sizes[0]; ++row) {
    HWY_DYNAMIC_DISPATCH(SoftmaxBackwardAt)(args, row);
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
