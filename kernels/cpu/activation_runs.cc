// Loops of activation functions over contiguous memory.
#include <cstdint>

#include "kernels/cpu/elementwise_runs.h"

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_runs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/activations-inl.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

template <typename Op, typename T>
void RunUnary(const RunScalars&, char* const* operands, int64_t n) {
  const T* x = reinterpret_cast<const T*>(operands[0]);
  T* y = reinterpret_cast<T*>(operands[1]);
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) y[i] = Op::Value(x[i]);
  } else {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      StoreFirst(Op::Value(d, LoadFirst(d, x + i, count)), d, y + i, count);
    });
  }
}

template <typename Op, typename T>
void RunUnaryBackward(const RunScalars&, char* const* operands, int64_t n) {
  const T* x = reinterpret_cast<const T*>(operands[0]);
  const T* dy = reinterpret_cast<const T*>(operands[1]);
  T* dx = reinterpret_cast<T*>(operands[2]);
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * Op::Slope(x[i]);
  } else {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const FloatVector slope = Op::Slope(d, LoadFirst(d, x + i, count));
      StoreFirst(hn::Mul(LoadFirst(d, dy + i, count), slope), d, dx + i, count);
    });
  }
}

template <typename T>
void RunSwiGlu(const RunScalars&, char* const* operands, int64_t n) {
  const T* gate = reinterpret_cast<const T*>(operands[0]);
  const T* up = reinterpret_cast<const T*>(operands[1]);
  T* y = reinterpret_cast<T*>(operands[2]);
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) y[i] = Silu::Value(gate[i]) * up[i];
  } else {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const FloatVector s = Silu::Value(d, LoadFirst(d, gate + i, count));
      StoreFirst(hn::Mul(s, LoadFirst(d, up + i, count)), d, y + i, count);
    });
  }
}

template <typename T>
void RunSwiGluGateBackward(const RunScalars&, char* const* operands,
                           int64_t n) {
  const T* gate = reinterpret_cast<const T*>(operands[0]);
  const T* up = reinterpret_cast<const T*>(operands[1]);
  const T* dy = reinterpret_cast<const T*>(operands[2]);
  T* dgate = reinterpret_cast<T*>(operands[3]);
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) {
      dgate[i] = dy[i] * up[i] * Silu::Slope(gate[i]);
    }
  } else {
    const FloatTag d;
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const FloatVector slope = Silu::Slope(d, LoadFirst(d, gate + i, count));
      const FloatVector g =
          hn::Mul(LoadFirst(d, dy + i, count), LoadFirst(d, up + i, count));
      StoreFirst(hn::Mul(g, slope), d, dgate + i, count);
    });
  }
}

// Calls f.operator()<T>() for a floating dtype; null for others.
template <typename F>
RunFunction ForFloating(DType dtype, F&& f) {
  return IsFloating(dtype) ? VisitFloating(dtype, f) : nullptr;
}

template <typename F>
RunFunction VisitUnaryOp(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::kGeluTanh:
      return f.template operator()<GeluTanh>();
    case UnaryOp::kGeluErf:
      return f.template operator()<GeluErf>();
    case UnaryOp::kSilu:
      return f.template operator()<Silu>();
    case UnaryOp::kRelu:
      return f.template operator()<Relu>();
    case UnaryOp::kSquare:
      return f.template operator()<Square>();
    case UnaryOp::kSqrt:
      return f.template operator()<Sqrt>();
    case UnaryOp::kExp:
      return f.template operator()<Exp>();
    case UnaryOp::kLog:
      return f.template operator()<Log>();
    case UnaryOp::kTanh:
      return f.template operator()<Tanh>();
  }
  return nullptr;
}

RunFunction FindUnary(UnaryOp op, DType dtype) {
  return VisitUnaryOp(op, [&]<typename Op>() {
    return ForFloating(
        dtype, []<typename T>() -> RunFunction { return RunUnary<Op, T>; });
  });
}
RunFunction FindUnaryBackward(UnaryOp op, DType dtype) {
  return VisitUnaryOp(op, [&]<typename Op>() {
    return ForFloating(dtype, []<typename T>() -> RunFunction {
      return RunUnaryBackward<Op, T>;
    });
  });
}
RunFunction FindSwiGlu(DType dtype) {
  return ForFloating(dtype,
                     []<typename T>() -> RunFunction { return RunSwiGlu<T>; });
}
RunFunction FindSwiGluGateBackward(DType dtype) {
  return ForFloating(dtype, []<typename T>() -> RunFunction {
    return RunSwiGluGateBackward<T>;
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(FindUnary);
HWY_EXPORT(FindUnaryBackward);
HWY_EXPORT(FindSwiGlu);
HWY_EXPORT(FindSwiGluGateBackward);

RunFunction UnaryRun(UnaryOp op, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindUnary)(op, dtype);
}
RunFunction UnaryBackwardRun(UnaryOp op, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindUnaryBackward)(op, dtype);
}
RunFunction SwiGluRun(DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindSwiGlu)(dtype);
}
RunFunction SwiGluGateBackwardRun(DType dtype) {
  return HWY_DYNAMIC_DISPATCH(FindSwiGluGateBackward)(dtype);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
