// Activation functions and their derivatives: of a vector of floats, and of a
// double. Included once for each instruction set.
#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(TESSERA_KERNELS_CPU_ACTIVATIONS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ACTIVATIONS_INL_H_
#undef TESSERA_KERNELS_CPU_ACTIVATIONS_INL_H_
#else
#define TESSERA_KERNELS_CPU_ACTIVATIONS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + exp(-x)). NaN gives some number in [0, 1]: callers multiply by x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  // Beyond 88 the exponential is not representable.
  const V limit = hn::Set(d, 88.0f);
  const V z = hn::Neg(x);
  const V e = hn::Exp(d, hn::Min(z, limit));
  return hn::IfThenElseZero(hn::Lt(z, limit), hn::Div(one, hn::Add(one, e)));
}
inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Odd over even polynomial, on [-4, 4]: beyond, the nearest float is +-1.
// Within 4e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  x = hn::Min(hn::Max(x, hn::Set(d, -4.0f)), hn::Set(d, 4.0f));
  const V x2 = hn::Mul(x, x);
  V p = hn::Set(d, -2.72614225801306e-10f);
  p = hn::MulAdd(p, x2, hn::Set(d, 2.77068142495902e-08f));
  p = hn::MulAdd(p, x2, hn::Set(d, -2.10102402082508e-06f));
  p = hn::MulAdd(p, x2, hn::Set(d, -5.69250639462346e-05f));
  p = hn::MulAdd(p, x2, hn::Set(d, -7.34990630326855e-04f));
  p = hn::MulAdd(p, x2, hn::Set(d, -2.95459980854025e-03f));
  p = hn::MulAdd(p, x2, hn::Set(d, -1.60960333262415e-02f));
  V q = hn::Set(d, -1.45660718464996e-05f);
  q = hn::MulAdd(q, x2, hn::Set(d, -2.13374055278905e-04f));
  q = hn::MulAdd(q, x2, hn::Set(d, -1.68282697438203e-03f));
  q = hn::MulAdd(q, x2, hn::Set(d, -7.37332916720468e-03f));
  q = hn::MulAdd(q, x2, hn::Set(d, -1.42647390514189e-02f));
  return hn::Div(hn::Mul(x, p), q);
}

// x * (1 + tanh(u)) / 2 with u = k (x + c x^3), which is x * sigmoid(2 u).
struct GeluTanh {
  static constexpr double kTwoK = 1.5957691216057308;  // 2 sqrt(2 / pi)
  static constexpr double kC = 0.044715;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Gate(D d, V x, V x2) {
    const V inner = hn::MulAdd(x2, hn::Set(d, static_cast<float>(kTwoK * kC)),
                               hn::Set(d, static_cast<float>(kTwoK)));
    return Sigmoid(d, hn::Mul(x, inner));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Mul(x, Gate(d, x, hn::Mul(x, x)));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    // Beyond 30 the gate is 0 or 1; no infinity may meet its zero slope.
    const V x2 = hn::Min(hn::Mul(x, x), hn::Set(d, 900.0f));
    const V s = Gate(d, x, x2);
    const V one_minus_s = hn::Sub(hn::Set(d, 1.0f), s);
    const V du = hn::MulAdd(x2, hn::Set(d, static_cast<float>(3 * kTwoK * kC)),
                            hn::Set(d, static_cast<float>(kTwoK)));
    return hn::MulAdd(hn::Mul(x, hn::Mul(s, one_minus_s)), du, s);
  }
  static double Value(double x) {
    return x * Sigmoid(kTwoK * x * (1 + kC * x * x));
  }
  static double Slope(double x) {
    const double s = Sigmoid(kTwoK * x * (1 + kC * x * x));
    return s + x * (s * (1 - s)) * kTwoK * (1 + 3 * kC * x * x);
  }
};

struct GeluErf {
  static constexpr double kSqrtHalf = 0.7071067811865476;
  static constexpr double kDensity = 0.3989422804014327;  // 1 / sqrt(2 pi)

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Cumulative(D d, V x) {
    const V half = hn::Set(d, 0.5f);
    const V e = Erf(d, hn::Mul(x, hn::Set(d, static_cast<float>(kSqrtHalf))));
    return hn::MulAdd(half, e, half);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Mul(x, Cumulative(d, x));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    const V x2 = hn::Min(hn::Mul(x, x), hn::Set(d, 900.0f));
    const V bell = hn::Exp(d, hn::Mul(x2, hn::Set(d, -0.5f)));
    return hn::MulAdd(hn::Mul(x, bell),
                      hn::Set(d, static_cast<float>(kDensity)),
                      Cumulative(d, x));
  }
  static double Cumulative(double x) { return 0.5 * std::erfc(-x * kSqrtHalf); }
  static double Value(double x) { return x * Cumulative(x); }
  static double Slope(double x) {
    return Cumulative(x) + x * kDensity * std::exp(-0.5 * x * x);
  }
};

struct Silu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Mul(x, Sigmoid(d, x));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    const V s = Sigmoid(d, x);
    const V one_minus_s = hn::Sub(hn::Set(d, 1.0f), s);
    return hn::MulAdd(hn::Mul(x, s), one_minus_s, s);
  }
  static double Value(double x) { return x * Sigmoid(x); }
  static double Slope(double x) {
    const double s = Sigmoid(x);
    return s + x * s * (1 - s);
  }
};

struct Relu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    // NaN stays NaN.
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f));
  }
  static double Value(double x) { return x <= 0 ? 0 : x; }
  static double Slope(double x) { return x > 0 ? 1 : 0; }
};

struct Square {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D, V x) {
    return hn::Mul(x, x);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D, V x) {
    return hn::Add(x, x);
  }
  static double Value(double x) { return x * x; }
  static double Slope(double x) { return 2 * x; }
};

struct Sqrt {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D, V x) {
    return hn::Sqrt(x);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    return hn::Div(hn::Set(d, 0.5f), hn::Sqrt(x));
  }
  static double Value(double x) { return std::sqrt(x); }
  static double Slope(double x) { return 0.5 / std::sqrt(x); }
};

struct Exp {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    const V largest = hn::Set(d, 88.72283f);
    const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
    const V y = hn::IfThenElse(hn::Gt(x, largest), infinity,
                               hn::Exp(d, hn::Min(x, largest)));
    return hn::IfThenElse(hn::IsNaN(x), x, y);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    return Value(d, x);
  }
  static double Value(double x) { return std::exp(x); }
  static double Slope(double x) { return std::exp(x); }
};

struct Log {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
    const V nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    V y = hn::IfThenElse(hn::Lt(x, infinity), hn::Log(d, x), x);
    y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), nan, y);
    return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), y);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    return hn::Div(hn::Set(d, 1.0f), x);
  }
  static double Value(double x) { return std::log(x); }
  static double Slope(double x) { return 1 / x; }
};

struct Tanh {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Value(D d, V x) {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Slope(D d, V x) {
    const V y = Value(d, x);
    return hn::NegMulAdd(y, y, hn::Set(d, 1.0f));
  }
  static double Value(double x) { return std::tanh(x); }
  static double Slope(double x) {
    const double y = std::tanh(x);
    return 1 - y * y;
  }
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_ACTIVATIONS_INL_H_
