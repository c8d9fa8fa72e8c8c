// The exponential function of vectors. Included once for each instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(TESSERA_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_EXP_INL_H_
#undef TESSERA_KERNELS_CPU_EXP_INL_H_
#else
#define TESSERA_KERNELS_CPU_EXP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Exp of Highway gives 0 for NaN; this one keeps it.
template <class D, class V>
HWY_INLINE V ExpOrNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_EXP_INL_H_
