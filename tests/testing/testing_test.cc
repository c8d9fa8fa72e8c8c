// The tools of tests can fail.
#include <limits>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

TEST(ToleranceTest, IsRelativeToTheLargestValue) {
  EXPECT_TRUE(AllClose({100, 1.05}, {100, 1}, 1e-3));
  EXPECT_FALSE(AllClose({100, 1.2}, {100, 1}, 1e-3));
  EXPECT_FALSE(AllClose({1}, {1, 2}, 1));
}

TEST(ToleranceTest, NanAndInfinityMustMatch) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(AllClose({nan, inf}, {nan, inf}, 0));
  EXPECT_FALSE(AllClose({nan}, {1}, 1e9));
  EXPECT_FALSE(AllClose({inf}, {-inf}, 1e9));
  EXPECT_FALSE(AllClose({1}, {inf}, 1e9));
}

TEST(ToleranceTest, GrowsWithTheSumAndShrinksWithPrecision) {
  EXPECT_LT(Tolerance(DType::kFloat32), Tolerance(DType::kFloat32, 100));
  EXPECT_LT(Tolerance(DType::kFloat32), Tolerance(DType::kBFloat16));
  EXPECT_EQ(Tolerance(DType::kInt32), 0);
}

TEST(HostTensorTest, KeepsStridesOffsetsAndGuards) {
  HostTensor t(DType::kInt32, {2, 3}, {1, 2}, /*offset=*/3);
  t.Set({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(t.Get(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(t.view().as<int32_t>()[1], 4);
  EXPECT_TRUE(t.GuardsIntact());
  t.view().as<int32_t>()[6] = 7;
  EXPECT_FALSE(t.GuardsIntact());
}

TEST(HostTensorTest, RoundsToTheDType) {
  EXPECT_EQ(RoundedTo(DType::kBFloat16, {1.001, 257}),
            (std::vector<double>{1, 256}));
}

TEST(RandomTensorsTest, DependOnSeedAndIndexOnly) {
  EXPECT_EQ(RandomValues(5, 1)[3], RandomValues(9, 1)[3]);
  EXPECT_NE(RandomValues(5, 1), RandomValues(5, 2));
  for (double v : RandomIntegers(100, 3, -2, 2)) {
    EXPECT_GE(v, -2);
    EXPECT_LE(v, 2);
  }
}

TEST(StatusMatchersTest, CompareCodeAndText) {
  const absl::Status status = absl::NotFoundError("no file x");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, "file"));
  EXPECT_THAT(status,
              ::testing::Not(StatusIs(absl::StatusCode::kInternal, "file")));
  EXPECT_THAT(status,
              ::testing::Not(StatusIs(absl::StatusCode::kNotFound, "y")));
  EXPECT_OK(absl::OkStatus());
  EXPECT_THROWS_ERROR(throw Error(status), absl::StatusCode::kNotFound, "x");
  EXPECT_OK(ThrownStatus([] {}));
}

}  // namespace
}  // namespace tessera
