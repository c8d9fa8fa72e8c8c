#include "fsdp/gradient_factors.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// J.48
TEST(GradientFactors, Vectors) {
  struct Vector {
    int64_t num_ranks;
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
    const GradientFactors factors = GradientFactorsFor(v.num_ranks);
    EXPECT_EQ(factors.pre, v.pre) << v.num_ranks;
    EXPECT_EQ(factors.post, v.post) << v.num_ranks;
  }
}

TEST(GradientFactors, ProductIsTheNumberOfRanks) {
  for (int64_t n = 1; n <= 1000; ++n) {
    const GradientFactors factors = GradientFactorsFor(n);
    EXPECT_EQ(factors.pre * factors.post, static_cast<double>(n));
    EXPECT_GE(factors.pre, 1);
    EXPECT_GE(factors.post, 1);
  }
}

}  // namespace
}  // namespace tessera
