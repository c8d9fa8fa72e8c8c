// The integer arithmetic of exact sums; see [Note: exact sums].
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/reduce.h"

namespace tessera::cpu {

inline constexpr int kExactUnitExponent = -320;  // A unit is 2 to this.
inline constexpr int kInfinityWord = kExactLimbs;
inline constexpr int kNanWord = kExactLimbs + 1;

// words += value, a finite multiple of the unit (what is below is cut off)
// with |value| < 2^280, or an infinity or NaN.
inline void AddToExact(double value, int64_t* words) {
  if (!std::isfinite(value) || std::abs(value) >= 0x1p280) {
    ++words[std::isnan(value) ? kNanWord : kInfinityWord];
    return;
  }
  if (value == 0) return;
  const auto bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  int64_t mantissa = static_cast<int64_t>(bits & ((uint64_t{1} << 52) - 1));
  if (exponent != 0) mantissa |= int64_t{1} << 52;
  // value = mantissa * 2^(exponent - 1075)
  int position = (exponent == 0 ? 1 : exponent) - 1075 - kExactUnitExponent;
  if (position < 0) {
    mantissa = position <= -53 ? 0 : mantissa >> -position;
    position = 0;
  }
  if (value < 0) mantissa = -mantissa;
  __extension__ using Int128 = __int128;
  Int128 wide = static_cast<Int128>(mantissa) * (Int128{1} << position % 32);
  int64_t* limb = words + position / 32;
  for (int i = 0; i < 2; ++i) {
    *limb++ += static_cast<int64_t>(static_cast<uint32_t>(wide));
    wide >>= 32;
  }
  *limb += static_cast<int64_t>(wide);
}

// Passes carries on: every limb but the last becomes 0 ... 2^32 - 1.
inline void NormalizeExact(int64_t* words) {
  for (int k = 0; k + 1 < kExactLimbs; ++k) {
    words[k + 1] += words[k] >> 32;
    words[k] &= 0xffffffff;
  }
}

// The value of normalized words that are not negative, rounded to nearest even.
inline double ExactValue(const int64_t* words) {
  if (words[kNanWord] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (words[kInfinityWord] != 0) return std::numeric_limits<double>::infinity();
  int top = kExactLimbs - 1;
  while (top > 0 && words[top] == 0) --top;
  // At least 65 significant bits of three limbs; what is below counts as one
  // more bit, which can only break a tie.
  __extension__ using Uint128 = unsigned __int128;
  Uint128 wide = 0;
  for (int k = top; k > top - 3; --k) {
    wide = wide << 32 | static_cast<Uint128>(k >= 0 ? words[k] : 0);
  }
  for (int k = top - 3; k >= 0; --k) {
    if (words[k] != 0) wide |= 1;
  }
  return std::ldexp(static_cast<double>(wide),
                    kExactUnitExponent + 32 * (top - 2));
}

}  // namespace tessera::cpu
