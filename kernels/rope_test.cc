#include "kernels/rope.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                             DType::kFloat16};

// Tables of angles p * (1 + i).
HostTensor Table(int64_t positions, int64_t half, double (*f)(double)) {
  std::vector<double> values;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      values.push_back(f(static_cast<double>(p * (1 + i))));
    }
  }
  return HostTensor::Of(DType::kFloat32, values, {positions, half});
}

double Cos(double x) { return std::cos(x); }
double Sin(double x) { return std::sin(x); }

// x [B, T, H, D] turned, in double; `rows` are positions.
std::vector<double> Reference(const std::vector<double>& x,
                              const std::vector<int64_t>& rows, int64_t heads,
                              int64_t dim) {
  const int64_t half = dim / 2;
  const std::vector<double> cos = Table(40, half, Cos).Get();
  const std::vector<double> sin = Table(40, half, Sin).Get();
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t d = i % dim;
    const int64_t row = rows[i / dim / heads % rows.size()];
    const double c = cos[row * half + d % half];
    const double s = sin[row * half + d % half];
    y[i] = d < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
  }
  return y;
}

TEST(RopeTest, EqualsLoops) {
  for (DType dtype : kFloats) {
    for (int64_t length : {0, 1, 7, 33}) {
      for (int64_t dim : {2, 6, 64, 128}) {
        for (int64_t gap : {0, 5}) {
          const int64_t step = 3 * dim + gap;
          HostTensor x(dtype, {2, length, 3, dim},
                       {length * step, step, dim, 1}, gap);
          x.Set(RandomValues(2 * length * 3 * dim, 1));
          const HostTensor y(dtype, {2, length, 3, dim});
          const HostTensor cos = Table(40, dim / 2, Cos);
          const HostTensor sin = Table(40, dim / 2, Sin);
          RopeArgs args = {x.view(), cos.view(), sin.view(), y.view(),
                           {},       5,          false};
          ASSERT_OK(kRope(args, TestLaunch(3)));
          std::vector<int64_t> rows;
          for (int64_t t = 0; t < length; ++t) rows.push_back(5 + t);
          const std::vector<double> expected = Reference(x.Get(), rows, 3, dim);
          EXPECT_TRUE(AllCloseAs(dtype, y.Get(), expected, 2));
          EXPECT_TRUE(y.GuardsIntact());
        }
      }
    }
  }
}

TEST(RopeTest, PositionsMayBeGiven) {
  const std::vector<int64_t> rows = {3, 0, 39, 3};
  HostTensor positions(DType::kInt64, {4});
  positions.Set({3, 0, 39, 3});
  HostTensor x(DType::kFloat32, {1, 4, 2, 8});
  x.Set(RandomValues(64, 1));
  const HostTensor cos = Table(40, 4, Cos), sin = Table(40, 4, Sin);
  const std::vector<double> expected = Reference(x.Get(), rows, 2, 8);
  ASSERT_OK(kRope(
      {x.view(), cos.view(), sin.view(), x.view(), positions.view(), 0, false},
      TestLaunch()));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, x.Get(), expected, 2));
}

TEST(RopeTest, RowsMayHavePositionsOfTheirOwn) {
  const std::vector<int64_t> rows = {3, 0, 39, 3, 7, 8, 0, 1};
  HostTensor positions(DType::kInt64, {2, 4});
  positions.Set({3, 0, 39, 3, 7, 8, 0, 1});
  HostTensor x(DType::kFloat32, {2, 4, 2, 8});
  x.Set(RandomValues(128, 1));
  const HostTensor cos = Table(40, 4, Cos), sin = Table(40, 4, Sin);
  const std::vector<double> expected = Reference(x.Get(), rows, 2, 8);
  const RopeArgs args = {x.view(), cos.view(),       sin.view(),
                         x.view(), positions.view(), 0};
  ASSERT_OK(kRope(args, TestLaunch(3)));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, x.Get(), expected, 2));
  positions.Set({3, 0, 39, 3, 7, 40, 0, 1});
  EXPECT_THAT(kRope(args, TestLaunch()),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "position 40 at index 1 is not among the 40"));
}

TEST(RopeTest, InverseTurnsBack) {
  HostTensor x(DType::kFloat64, {2, 9, 2, 16}),
      y(DType::kFloat64, {2, 9, 2, 16});
  x.Set(RandomValues(2 * 9 * 2 * 16, 1));
  const std::vector<double> before = x.Get();
  const HostTensor cos = Table(40, 8, Cos), sin = Table(40, 8, Sin);
  RopeArgs args = {x.view(), cos.view(), sin.view(), y.view(), {}, 0, false};
  ASSERT_OK(kRope(args, TestLaunch()));
  std::swap(args.x, args.y);
  args.inverse = true;
  ASSERT_OK(kRope(args, TestLaunch()));
  // The tables are float32, so their rows are of length 1 to 1e-7 only.
  EXPECT_TRUE(AllClose(x.Get(), before, 4e-7));
}

TEST(RopeTest, PositionOutsideTheTables) {
  HostTensor x(DType::kFloat32, {1, 4, 2, 8});
  x.Set(RandomValues(64, 1));
  const HostTensor cos = Table(40, 4, Cos), sin = Table(40, 4, Sin);
  RopeArgs args = {x.view(), cos.view(), sin.view(), x.view(), {}, 37, false};
  EXPECT_THAT(kRope(args, TestLaunch()),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "position 40 at index 3 is not among the 40"));
}

}  // namespace
}  // namespace tessera
