// How far a result may be from the exact one: a function of the dtype and of
// the length of the sum, not of trying numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace tessera {

// Half the distance between 1 and the next number of `dtype`.
inline double UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kBFloat16:
      return 0x1p-9;
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kFloat64:
      return 0x1p-53;
    default:
      return 0;
  }
}

// Relative to the largest value of the result. Rounding errors of a sum of n
// terms, kept in AccumulateDType, grow as sqrt(n); the result itself is rounded
// to `dtype` once. Integers are exact.
inline double Tolerance(DType dtype, int64_t sum_length = 1) {
  const double n = static_cast<double>(std::max<int64_t>(sum_length, 1));
  return 2 * UnitRoundoff(dtype) +
         8 * UnitRoundoff(AccumulateDType(dtype)) * std::sqrt(n);
}

// Whether max|actual - expected| <= tolerance * max|expected|. NaN equals NaN
// and an infinity itself only.
inline ::testing::AssertionResult AllClose(const std::vector<double>& actual,
                                           const std::vector<double>& expected,
                                           double tolerance) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " values where "
                                         << expected.size() << " were expected";
  }
  double largest = 0;
  for (double e : expected) {
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i];
    const double e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double difference = std::abs(a - e);
    if (std::isfinite(difference) && difference <= tolerance * largest) {
      continue;
    }
    return ::testing::AssertionFailure()
           << "element " << i << " of " << actual.size() << " is " << a
           << " where " << e << " was expected: off by " << difference
           << ", allowed " << tolerance * largest;
  }
  return ::testing::AssertionSuccess();
}

// AllClose with the tolerance of `dtype` and `sum_length`.
inline ::testing::AssertionResult AllCloseAs(
    DType dtype, const std::vector<double>& actual,
    const std::vector<double>& expected, int64_t sum_length = 1) {
  return AllClose(actual, expected, Tolerance(dtype, sum_length));
}

}  // namespace tessera
