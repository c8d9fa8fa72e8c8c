// What ops add to kernels of reductions: dims, shapes, checks, meta tensors.
#include "runtime/ops/reduce.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const Tensor& Matrix() {
  static const auto* x =
      new Tensor(Tensor::FromVector<float>({1, -8, 3, 4, 5, 6}, {2, 3}));
  return *x;
}

TEST(ReduceOpsTest, OverAllElements) {
  EXPECT_EQ(ops::Sum(Matrix()).Item(), 11);
  EXPECT_NEAR(ops::Mean(Matrix()).Item(), 11.0 / 6, 1e-6);
  EXPECT_EQ(ops::Max(Matrix()).Item(), 6);
  EXPECT_EQ(ops::MaxMagnitude(Matrix()).Item(), 8);
  EXPECT_EQ(ops::Sum(Matrix()).shape(), Shape{});
  EXPECT_EQ(ops::Sum(Tensor::FromVector<float>({}, {0})).Item(), 0);
}

TEST(ReduceOpsTest, AlongADim) {
  EXPECT_EQ(ops::Sum(Matrix(), 0).ToDoubles(), (Values{5, -3, 9}));
  EXPECT_EQ(ops::Sum(Matrix(), -1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(ops::Mean(Matrix(), 1).ToDoubles()[1], 5);
  EXPECT_EQ(ops::Max(Matrix(), 0).ToDoubles(), (Values{4, 5, 6}));
  EXPECT_EQ(ops::Sum(Matrix().Transpose(0, 1), 0).ToDoubles(),
            (Values{-4, 15}));
  EXPECT_THAT(ThrownStatus([] { ops::Sum(Matrix(), 2); }),
              ::testing::Not(IsOk()));
}

TEST(ReduceOpsTest, SumToUndoesBroadcasting) {
  EXPECT_EQ(ops::SumTo(Matrix(), {3}).ToDoubles(), (Values{5, -3, 9}));
  EXPECT_EQ(ops::SumTo(Matrix(), {2, 1}).ToDoubles(), (Values{-4, 15}));
  EXPECT_EQ(ops::SumTo(Matrix(), {}).Item(), 11);
  EXPECT_EQ(ops::SumTo(Matrix(), {2, 3}).storage(), Matrix().storage());
  EXPECT_THROWS_ERROR(ops::SumTo(Matrix(), {2}), kInvalid, "SumTo");
}

TEST(ReduceOpsTest, ColumnSumsAddToAFloat32Target) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  const Tensor y = Tensor::FromVector<float>({10, 20}, {2});
  ops::ColumnSumsInto(x, y, /*accumulate=*/true);
  EXPECT_EQ(y.ToDoubles(), (Values{14, 26}));
  ops::ColumnSumsInto(x, y, /*accumulate=*/false);
  EXPECT_EQ(y.ToDoubles(), (Values{4, 6}));
  EXPECT_THROWS_ERROR(ops::ColumnSumsInto(x, x, false), kInvalid, "[N, C]");
}

TEST(ReduceOpsTest, ExactSumsOfViews) {
  const ops::ExactSum squares = ops::NewExactSum();
  ops::AddSquares(Matrix().Transpose(0, 1), squares);
  EXPECT_EQ(ops::ToDouble(squares), 1 + 64 + 9 + 16 + 25 + 36);
  ops::AddSquares(Matrix().Narrow(1, 1, 1), squares);
  EXPECT_EQ(ops::ToDouble(squares), 151 + 64 + 25);
  const ops::ExactSum magnitudes = ops::NewExactSum();
  ops::AddMagnitudes(Matrix(), magnitudes);
  EXPECT_EQ(ops::ToDouble(magnitudes), 27);
  EXPECT_EQ(ops::ExactSquareRoot(squares).Item(), std::sqrt(240.0));
  const Tensor integers = Tensor::FromVector<int32_t>({1}, {1});
  EXPECT_THROWS_ERROR(ops::AddSquares(integers, squares), kInvalid, "int32");
}

TEST(ReduceOpsTest, MetaTensorsGetShapesOnly) {
  const Tensor x = Tensor::Empty({2, 3}, {DType::kFloat32, kMetaDevice});
  EXPECT_EQ(ops::Sum(x, 0).shape(), Shape{3});
  EXPECT_TRUE(ops::Mean(x).is_meta());
}

}  // namespace
}  // namespace tessera
