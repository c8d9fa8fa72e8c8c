// Random numbers by counting. No fused multiply-add in this file: a separate
// rounding of each product gives the same bits on every machine.
#include "kernels/random.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/parallel.h"

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;

template <size_t kSize>
HWY_INLINE FloatVector Polynomial(const float (&coefficients)[kSize],
                                  FloatVector x) {
  const FloatTag d;
  FloatVector y = hn::Set(d, coefficients[0]);
  for (size_t i = 1; i < kSize; ++i) {
    y = hn::Add(hn::Mul(y, x), hn::Set(d, coefficients[i]));
  }
  return y;
}

// Of normal positive x; as Cephes' logf.
HWY_INLINE FloatVector Logarithm(FloatVector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto bits = hn::BitCast(di, x);
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
  const FloatVector m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const FloatVector f = hn::Sub(m, hn::Set(d, 1.0f));
  const FloatVector exponent = hn::ConvertTo(d, e);
  static constexpr float kLog[] = {
      7.0376836292E-2f,  -1.1514610310E-1f, 1.1676998740E-1f,
      -1.2420140846E-1f, 1.4249322787E-1f,  -1.6668057665E-1f,
      2.0000714765E-1f,  -2.4999993993E-1f, 3.3333331174E-1f};
  const FloatVector f2 = hn::Mul(f, f);
  FloatVector y = hn::Mul(hn::Mul(Polynomial(kLog, f), f), f2);
  y = hn::Sub(y, hn::Mul(exponent, hn::Set(d, 2.12194440e-4f)));
  y = hn::Sub(y, hn::Mul(f2, hn::Set(d, 0.5f)));
  y = hn::Add(f, y);
  return hn::Add(y, hn::Mul(exponent, hn::Set(d, 0.693359375f)));
}

// The x in (-1, 1) quantile of the normal distribution: sqrt(2) erfinv(x), with
// M. Giles' two polynomials in -log(1 - x^2).
HWY_INLINE FloatVector NormalQuantile(FloatVector x) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f);
  const FloatVector w =
      hn::Neg(Logarithm(hn::Mul(hn::Sub(one, x), hn::Add(one, x))));
  static constexpr float kCenter[] = {
      2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
      -4.39150654e-06f, 0.00021858087f,  -0.00125372503f,
      -0.00417768164f,  0.246640727f,    1.50140941f};
  static constexpr float kTail[] = {
      -0.000200214257f, 0.000100950558f, 0.00134934322f,
      -0.00367342844f,  0.00573950773f,  -0.0076224613f,
      0.00943887047f,   1.00167406f,     2.83297682f};
  const FloatVector center = Polynomial(kCenter, hn::Sub(w, hn::Set(d, 2.5f)));
  const FloatVector tail = Polynomial(
      kTail, hn::Sub(hn::Sqrt(hn::Max(w, hn::Zero(d))), hn::Set(d, 3.0f)));
  const FloatVector p =
      hn::IfThenElse(hn::Lt(w, hn::Set(d, 5.0f)), center, tail);
  return hn::Mul(hn::Mul(p, x), hn::Set(d, 1.41421356f));
}

// 24 bits of a word as a number in [0, 1).
HWY_INLINE FloatVector UnitInterval(hn::Vec<WordTag> word) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto integer = hn::BitCast(di, hn::ShiftRight<8>(word));
  return hn::Mul(hn::ConvertTo(d, integer), hn::Set(d, 0x1p-24f));
}

struct Uniform {
  static HWY_INLINE FloatVector Of(hn::Vec<WordTag> word) {
    return UnitInterval(word);
  }
};

struct Normal {
  static HWY_INLINE FloatVector Of(hn::Vec<WordTag> word) {
    const FloatTag d;
    // An odd multiple of 2^-24 in (-1, 1): never 0 or 1 away.
    const FloatVector u = UnitInterval(word);
    const FloatVector x =
        hn::Add(hn::Sub(hn::Add(u, u), hn::Set(d, 1.0f)), hn::Set(d, 0x1p-24f));
    return NormalQuantile(x);
  }
};

// a + b * z of each word, in float (in double for double).
template <typename Shape, typename T>
void FillScaled(const FillRandomArgs& args, uint64_t offset, T* out,
                int64_t n) {
  const FloatTag d;
  const WordTag dw;
  const bool uniform = args.distribution == Distribution::kUniform;
  const double scale = uniform ? args.b - args.a : args.b;
  const FloatVector factor = hn::Set(d, static_cast<float>(scale));
  const FloatVector start = hn::Set(d, static_cast<float>(args.a));
  ForEachRandomBlock(
      args.key, offset, n,
      [&](int64_t i, const uint32_t* words, int64_t count) HWY_ATTR {
        ForEachVector(d, count, [&](int64_t j, int64_t few) HWY_ATTR {
          const auto word = hn::BitCast(
              dw, LoadFirst(d, reinterpret_cast<const float*>(words + j), few));
          const FloatVector z = Shape::Of(word);
          if constexpr (std::is_same_v<T, double>) {
            float lanes[hn::MaxLanes(FloatTag())];
            hn::StoreU(z, d, lanes);
            for (int64_t k = 0; k < few; ++k) {
              out[i + j + k] = args.a + scale * static_cast<double>(lanes[k]);
            }
          } else {
            StoreFirst(hn::Add(hn::Mul(z, factor), start), d, out + i + j, few);
          }
        });
      });
}

template <typename T>
void FillBernoulli(const FillRandomArgs& args, uint64_t offset, T* out,
                   int64_t n) {
  // Probability in units of 2^-32; 1 is above every word.
  const double threshold = args.a * 0x1p32;
  ForEachRandomBlock(args.key, offset, n,
                     [&](int64_t i, const uint32_t* words, int64_t count) {
                       for (int64_t k = 0; k < count; ++k) {
                         const bool one = words[k] < threshold;
                         if constexpr (std::is_arithmetic_v<T>) {
                           out[i + k] = static_cast<T>(one);
                         } else {
                           out[i + k] = T(one ? 1.0f : 0.0f);
                         }
                       }
                     });
}

void FillBits(const FillRandomArgs& args, uint64_t offset, int32_t* out,
              int64_t n) {
  ForEachRandomBlock(args.key, offset, n,
                     [&](int64_t i, const uint32_t* words, int64_t count) {
                       std::copy_n(words, count, out + i);
                     });
}

// Elements begin ... end of args.x.
void FillRange(const FillRandomArgs& args, int64_t begin, int64_t end) {
  const uint64_t offset = static_cast<uint64_t>(args.element_offset) + begin;
  const int64_t n = end - begin;
  if (args.distribution == Distribution::kBits) {
    FillBits(args, offset, args.x.as<int32_t>() + begin, n);
    return;
  }
  VisitDType(args.x.dtype, [&]<typename T>() {
    T* out = args.x.as<T>() + begin;
    if (args.distribution == Distribution::kBernoulli) {
      FillBernoulli(args, offset, out, n);
    } else if constexpr (!std::is_integral_v<T>) {
      if (args.distribution == Distribution::kUniform) {
        FillScaled<Uniform>(args, offset, out, n);
      } else {
        FillScaled<Normal>(args, offset, out, n);
      }
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(FillRange);

namespace {
bool CanFill(Distribution distribution, DType dtype) {
  switch (distribution) {
    case Distribution::kBits:
      return dtype == DType::kInt32;
    case Distribution::kBernoulli:
      return true;
    case Distribution::kUniform:
    case Distribution::kNormal:
      return IsFloating(dtype);
  }
  return false;
}
}  // namespace

absl::Status FillRandom(const FillRandomArgs& args, const Launch& launch) {
  if (!CanFill(args.distribution, args.x.dtype) || !args.x.IsContiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FillRandom: cannot fill ", DTypeName(args.x.dtype),
        args.x.IsContiguous() ? "" : " with gaps",
        "; uniform and normal numbers want a contiguous floating dtype, bits "
        "want int32"));
  }
  ParallelRanges(args.x.num_elements(), kElementsPerThread / 4,
                 launch.num_threads, [&](int64_t begin, int64_t end) {
                   HWY_DYNAMIC_DISPATCH(FillRange)(args, begin, end);
                 });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
