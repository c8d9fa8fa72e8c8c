// Loops of casts and arithmetic over contiguous memory.
#include <cstdint>

#include "kernels/cpu/elementwise_runs.h"

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/arithmetic_runs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

template <typename T>
inline constexpr bool kNarrowFloat =
    std::is_same_v<T, float> || std::is_same_v<T, bfloat16> ||
    std::is_same_v<T, float16>;
template <typename T>
inline constexpr bool kHalf =
    std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

// A number that C++ converts itself.
template <typename T>
auto Widened(T value) {
  if constexpr (kHalf<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <typename Src, typename Dst>
Dst ConvertOne(Src value) {
  const auto wide = Widened(value);
  if constexpr (std::is_same_v<Dst, bool>) {
    return wide != 0;
  } else if constexpr (kHalf<Dst>) {
    return Dst(static_cast<float>(wide));
  } else {
    return static_cast<Dst>(wide);
  }
}

template <typename Src, typename Dst>
void RunConvert(const RunScalars&, char* const* operands, int64_t n) {
  const Src* src = reinterpret_cast<const Src*>(operands[0]);
  Dst* dst = reinterpret_cast<Dst*>(operands[1]);
  if constexpr (kNarrowFloat<Src> && kNarrowFloat<Dst>) {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      StoreFirst(LoadFirst(d, src + i, count), d, dst + i, count);
    });
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i] = ConvertOne<Src, Dst>(src[i]);
  }
}

struct AddOp {
  static HWY_INLINE FloatVector Vector(FloatVector a, FloatVector b) {
    return hn::Add(a, b);
  }
  template <typename T>
  static T Scalar(T a, T b) {
    return a + b;
  }
};
struct SubOp {
  static HWY_INLINE FloatVector Vector(FloatVector a, FloatVector b) {
    return hn::Sub(a, b);
  }
  template <typename T>
  static T Scalar(T a, T b) {
    return a - b;
  }
};
struct MulOp {
  static HWY_INLINE FloatVector Vector(FloatVector a, FloatVector b) {
    return hn::Mul(a, b);
  }
  template <typename T>
  static T Scalar(T a, T b) {
    return a * b;
  }
};
struct DivOp {
  static HWY_INLINE FloatVector Vector(FloatVector a, FloatVector b) {
    return hn::Div(a, b);
  }
  // An integer over zero is zero, and the least over -1 itself: nothing may
  // trap.
  template <typename T>
  static T Scalar(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
    }
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      using U = std::make_unsigned_t<T>;
      if (b == -1) return static_cast<T>(U{0} - static_cast<U>(a));
    }
    return a / b;
  }
};

// Integers wrap around: their arithmetic is done unsigned.
template <typename Op, typename T>
T ScalarBinary(T a, T b) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<Op, DivOp>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        Op::template Scalar<U>(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return Op::template Scalar<T>(a, b);
  }
}

template <typename Op, typename T>
void RunBinary(const RunScalars&, char* const* operands, int64_t n) {
  const T* a = reinterpret_cast<const T*>(operands[0]);
  const T* b = reinterpret_cast<const T*>(operands[1]);
  T* y = reinterpret_cast<T*>(operands[2]);
  if constexpr (kNarrowFloat<T>) {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      StoreFirst(
          Op::Vector(LoadFirst(d, a + i, count), LoadFirst(d, b + i, count)), d,
          y + i, count);
    });
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = ScalarBinary<Op, T>(a[i], b[i]);
  }
}

template <typename T>
void RunAffine(const RunScalars& scalars, char* const* operands, int64_t n) {
  const T* x = reinterpret_cast<const T*>(operands[0]);
  T* y = reinterpret_cast<T*>(operands[1]);
  if constexpr (kNarrowFloat<T>) {
    const FloatTag d;
    const FloatVector factor = hn::Set(d, static_cast<float>(scalars.factor));
    const FloatVector offset = hn::Set(d, static_cast<float>(scalars.offset));
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      StoreFirst(hn::MulAdd(LoadFirst(d, x + i, count), factor, offset), d,
                 y + i, count);
    });
  } else {
    const T factor = static_cast<T>(scalars.factor);
    const T offset = static_cast<T>(scalars.offset);
    for (int64_t i = 0; i < n; ++i) {
      y[i] =
          ScalarBinary<AddOp, T>(ScalarBinary<MulOp, T>(x[i], factor), offset);
    }
  }
}

template <typename X, typename Y>
void RunAccumulate(const RunScalars& scalars, char* const* operands,
                   int64_t n) {
  const X* x = reinterpret_cast<const X*>(operands[0]);
  Y* y = reinterpret_cast<Y*>(operands[1]);
  if constexpr (kNarrowFloat<X>) {
    const FloatTag d;
    const FloatVector factor = hn::Set(d, static_cast<float>(scalars.factor));
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      StoreFirst(hn::MulAdd(LoadFirst(d, x + i, count), factor,
                            LoadFirst(d, y + i, count)),
                 d, y + i, count);
    });
  } else {
    const Y factor = static_cast<Y>(scalars.factor);
    for (int64_t i = 0; i < n; ++i) {
      y[i] = ScalarBinary<AddOp, Y>(y[i], ScalarBinary<MulOp, Y>(x[i], factor));
    }
  }
}

RunFunction FindConvert(DType src, DType dst) {
  return VisitDType(src, [&]<typename Src>() {
    return VisitDType(dst, []<typename Dst>() -> RunFunction {
      return RunConvert<Src, Dst>;
    });
  });
}

template <typename Op>
RunFunction FindBinaryOf(DType dtype) {
  return VisitDType(dtype, []<typename T>() -> RunFunction {
    if constexpr (std::is_same_v<T, bool>) {
      return nullptr;
    } else {
      return RunBinary<Op, T>;
    }
  });
}
RunFunction FindBinary(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kAdd:
      return FindBinaryOf<AddOp>(dtype);
    case BinaryOp::kSub:
      return FindBinaryOf<SubOp>(dtype);
    case BinaryOp::kMul:
      return FindBinaryOf<MulOp>(dtype);
    case BinaryOp::kDiv:
      return FindBinaryOf<DivOp>(dtype);
  }
  return nullptr;
}

RunFunction FindAffine(DType dtype) {
  return VisitDType(dtype, []<typename T>() -> RunFunction {
    if constexpr (std::is_same_v<T, bool>) {
      return nullptr;
    } else {
      return RunAffine<T>;
    }
  });
}

RunFunction FindAccumulate(DType x, DType y) {
  return VisitDType(x, [&]<typename X>() {
    return VisitDType(y, []<typename Y>() -> RunFunction {
      constexpr bool same = std::is_same_v<X, Y> && !std::is_same_v<X, bool>;
      if constexpr (same || (kNarrowFloat<X> && kNarrowFloat<Y>)) {
        return RunAccumulate<X, Y>;
      } else {
        return nullptr;
      }
    });
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(FindConvert);
HWY_EXPORT(FindBinary);
HWY_EXPORT(FindAffine);
HWY_EXPORT(FindAccumulate);

RunFunction ConvertRun(DType src, DType dst) {
  return HWY_DYNAMIC_DISPATCH(FindConvert)(src, dst);
}
RunFunction BinaryRun(BinaryOp op, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindBinary)(op, dtype);
}
RunFunction AffineRun(DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindAffine)(dtype);
}
RunFunction AccumulateRun(DType x, DType y) {
  return HWY_DYNAMIC_DISPATCH(FindAccumulate)(x, y);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
