// Vectors of float (or double) from and to memory of any floating type: what
// row kernels read and write. Included once for each instruction set.
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/dtype.h"

#if defined(TESSERA_KERNELS_CPU_FLOAT_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_FLOAT_IO_INL_H_
#undef TESSERA_KERNELS_CPU_FLOAT_IO_INL_H_
#else
#define TESSERA_KERNELS_CPU_FLOAT_IO_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The type that sums and products of T are computed in.
template <typename T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <typename T>
using ComputeType = typename ComputeOf<T>::type;

template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadVector(D d, const T* p) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const hn::RebindToUnsigned<D> du32;
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  } else if constexpr (std::is_same_v<T, float16>) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(
        d, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    return hn::LoadU(d, p);
  }
}

// Rounds to nearest even, as bfloat16(float) and float16(float) do.
template <class D, typename T>
HWY_INLINE void StoreVector(hn::Vec<D> v, D d, T* p) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const hn::Rebind<uint16_t, D> du16;
    const auto word = hn::BitCast(du32, v);
    const auto upper = hn::ShiftRight<16>(word);
    const auto odd = hn::And(upper, hn::Set(du32, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(word, hn::Add(odd, hn::Set(du32, 0x7fff))));
    const auto quiet_nan = hn::Or(upper, hn::Set(du32, 0x40));
    const auto is_nan = hn::RebindMask(du32, hn::IsNaN(v));
    const auto bits = hn::IfThenElse(is_nan, quiet_nan, rounded);
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, bits)), du16,
               reinterpret_cast<uint16_t*>(p));
  } else if constexpr (std::is_same_v<T, float16>) {
    const hn::Rebind<hwy::float16_t, D> df16;
    hn::StoreU(hn::DemoteTo(df16, v), df16,
               reinterpret_cast<hwy::float16_t*>(p));
  } else {
    hn::StoreU(v, d, p);
  }
}

// The first `count` lanes; the others are zero. Never touches memory beyond.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const T* p, int64_t count) {
  if (count == static_cast<int64_t>(hn::Lanes(d))) return LoadVector(d, p);
  T lanes[hn::MaxLanes(d)] = {};
  std::memcpy(static_cast<void*>(lanes), p, count * sizeof(T));
  return LoadVector(d, lanes);
}

template <class D, typename T>
HWY_INLINE void StoreFirst(hn::Vec<D> v, D d, T* p, int64_t count) {
  if (count == static_cast<int64_t>(hn::Lanes(d))) {
    StoreVector(v, d, p);
    return;
  }
  T lanes[hn::MaxLanes(d)];
  StoreVector(v, d, lanes);
  std::memcpy(static_cast<void*>(p), lanes, count * sizeof(T));
}

// Calls f(i, count) for each vector of [0, n); the last one may be short.
template <class D, class F>
HWY_INLINE void ForEachVector(D d, int64_t n, F&& f) {
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_FLOAT_IO_INL_H_
