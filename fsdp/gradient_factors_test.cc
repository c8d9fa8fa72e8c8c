#include "fsdp/gradient_factors.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// J.48
TEST(GradientFactors, Vectors) {
  struct Vector {
    double divisor;
    double pre;
    double post;
  };
  for (const Vector& v : {Vector{1, 1, 1},
                          {2, 2, 1},
                          {3, 2, 1.5},
                          {4, 2, 2},
                          {6, 4, 1.5},
                          {8, 4, 2},
                          {16, 4, 4}}) {
    const GradientFactors factors = GradientFactorsFor(v.divisor);
    EXPECT_EQ(factors.pre, v.pre) << v.divisor;
    EXPECT_EQ(factors.post, v.post) << v.divisor;
  }
}

TEST(GradientFactors, ProductIsTheNumberOfRanks) {
  for (int64_t n = 1; n <= 1000; ++n) {
    const GradientFactors factors = GradientFactorsFor(static_cast<double>(n));
    EXPECT_EQ(factors.pre * factors.post, static_cast<double>(n));
    EXPECT_GE(factors.pre, 1);
    EXPECT_GE(factors.post, 1);
  }
}

// A divisor that a caller chose is any number above 0.
TEST(GradientFactors, AnyDivisorIsSplit) {
  for (const double divisor : {1e-3, 0.5, 0.75, 1.5, 2.5, 1000.5, 1e9, 3e9}) {
    const GradientFactors factors = GradientFactorsFor(divisor);
    EXPECT_EQ(factors.pre * factors.post, divisor);
    EXPECT_GE(factors.pre, 1);
  }
  EXPECT_EQ(GradientFactorsFor(0.5).pre, 1);
  EXPECT_EQ(GradientFactorsFor(2.5).pre, 2);
  EXPECT_EQ(GradientFactorsFor(1000.5).pre, 32);
}

}  // namespace
}  // namespace tessera
