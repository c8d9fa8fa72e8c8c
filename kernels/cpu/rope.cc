// Rotary position embedding, a position at a time.
#include "kernels/rope.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Of one position.
struct Angles {
  const float* cos;
  const float* sin;
  float sign;
  int64_t half;
};

template <typename T>
void TurnHead(const T* x, const Angles& angles, T* y) {
  const hn::ScalableTag<float> d;
  const int64_t half = angles.half;
  const auto sign = hn::Set(d, angles.sign);
  ForEachVector(d, half, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto c = LoadFirst(d, angles.cos + i, n);
    const auto s = hn::Mul(LoadFirst(d, angles.sin + i, n), sign);
    const auto first = LoadFirst(d, x + i, n);
    const auto second = LoadFirst(d, x + half + i, n);
    StoreFirst(hn::MulSub(first, c, hn::Mul(second, s)), d, y + i, n);
    StoreFirst(hn::MulAdd(second, c, hn::Mul(first, s)), d, y + half + i, n);
  });
}

void TurnHead(const double* x, const Angles& angles, double* y) {
  for (int64_t i = 0; i < angles.half; ++i) {
    const double c = angles.cos[i];
    const double s = static_cast<double>(angles.sin[i]) * angles.sign;
    const double first = x[i];
    const double second = x[angles.half + i];
    y[i] = first * c - second * s;
    y[angles.half + i] = second * c + first * s;
  }
}

// All heads of one position of the sequence, `row` of the tables.
void TurnPosition(const RopeArgs& args, int64_t batch, int64_t t, int64_t row) {
  const int64_t half = args.cos.sizes[1];
  const Angles angles = {args.cos.as<float>() + row * half,
                         args.sin.as<float>() + row * half,
                         args.inverse ? -1.0f : 1.0f, half};
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    const T* x =
        args.x.as<T>() + batch * args.x.strides[0] + t * args.x.strides[1];
    T* y = args.y.as<T>() + batch * args.y.strides[0] + t * args.y.strides[1];
    for (int64_t h = 0; h < args.x.sizes[2]; ++h) {
      TurnHead(x + h * args.x.strides[2], angles, y + h * args.y.strides[2]);
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(TurnPosition);

namespace {

int64_t RowOf(const RopeArgs& args, int64_t batch, int64_t t) {
  if (!args.positions.defined()) return args.offset + t;
  const int64_t first =
      args.positions.num_dims == 2 ? batch * args.positions.sizes[1] : 0;
  return args.positions.as<int64_t>()[first + t];
}

absl::Status CheckPositions(const RopeArgs& args) {
  const int64_t length = args.x.sizes[1];
  const int64_t num_rows =
      args.positions.defined() ? args.positions.num_elements() : length;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t t = i % length;
    const int64_t row = RowOf(args, i / length, t);
    if (row < 0 || row >= args.cos.sizes[0]) {
      return absl::OutOfRangeError(absl::StrCat(
          "Rope: position ", row, " at index ", t, " is not among the ",
          args.cos.sizes[0], " of the tables; make them longer"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Rope(const RopeArgs& args, const Launch& launch) {
  if (args.x.num_elements() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPositions(args));
  const int64_t length = args.x.sizes[1];
  const int64_t num_positions = args.x.sizes[0] * length;
#pragma omp parallel for num_threads(launch.num_threads) schedule(static)
  for (int64_t i = 0; i < num_positions; ++i) {
    HWY_DYNAMIC_DISPATCH(TurnPosition)
    (args, i / length, i % length, RowOf(args, i / length, i % length));
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
