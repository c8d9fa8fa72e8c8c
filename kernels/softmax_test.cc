#include "kernels/softmax.h"

#include <cmath>
#include <cstdint>
#include <limits>
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
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> Reference(const std::vector<double>& x, int64_t cols) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += cols) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += std::exp(x[row + c]);
    for (int64_t c = 0; c < cols; ++c) {
      y[row + c] = std::exp(x[row + c]) / sum;
    }
  }
  return y;
}

std::vector<double> BackwardReference(const std::vector<double>& y,
                                      const std::vector<double>& grad,
                                      int64_t cols) {
  std::vector<double> result(y.size());
  for (size_t row = 0; row < y.size(); row += cols) {
    double dot = 0;
    for (int64_t c = 0; c < cols; ++c) dot += y[row + c] * grad[row + c];
    for (int64_t c = 0; c < cols; ++c) {
      result[row + c] = y[row + c] * (grad[row + c] - dot);
    }
  }
  return result;
}

TEST(SoftmaxTest, EqualsLoops) {
  for (DType dtype : kFloats) {
    for (int64_t rows : {0, 1, 7, 33}) {
      for (int64_t cols : {1, 7, 16, 33, 1000}) {
        for (int64_t gap : {0, 3}) {
          HostTensor x(dtype, {rows, cols}, {cols + gap, 1}, gap);
          HostTensor y(dtype, {rows, cols}, {cols + gap, 1}, gap);
          x.Set(RandomValues(rows * cols, 1, -5, 5));
          ASSERT_OK(kSoftmax({x.view(), y.view()}, TestLaunch(3)));
          EXPECT_TRUE(
              AllCloseAs(dtype, y.Get(), Reference(x.Get(), cols), cols));

          HostTensor grad(dtype, {rows, cols}), grad_x(dtype, {rows, cols});
          grad.Set(RandomValues(rows * cols, 2));
          ASSERT_OK(kSoftmaxBackward({y.view(), grad.view(), grad_x.view()},
                                     TestLaunch(3)));
          std::vector<double> actual = grad_x.Get();
          std::vector<double> expected =
              BackwardReference(y.Get(), grad.Get(), cols);
          actual.push_back(1);  // The size of what is subtracted.
          expected.push_back(1);
          EXPECT_TRUE(AllCloseAs(dtype, actual, expected, cols));
          EXPECT_TRUE(grad_x.GuardsIntact());
        }
      }
    }
  }
}

TEST(SoftmaxTest, LargeAndMaskedValues) {
  const HostTensor x = HostTensor::Of(
      DType::kFloat32, {1000, 1000, -kInfinity, -1000, -1001, -kInfinity},
      {2, 3});
  const HostTensor y(DType::kFloat32, {2, 3});
  ASSERT_OK(kSoftmax({x.view(), y.view()}, TestLaunch()));
  const double p = 1 / (1 + std::exp(-1));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, y.Get(), {.5, .5, 0, p, 1 - p, 0}));
}

TEST(SoftmaxTest, NotANumberAndNothingVisible) {
  const double nan = std::nan("");
  const HostTensor x = HostTensor::Of(
      DType::kFloat32, {0, nan, 1, -kInfinity, -kInfinity, -kInfinity}, {2, 3});
  const HostTensor y(DType::kFloat32, {2, 3});
  ASSERT_OK(kSoftmax({x.view(), y.view()}, TestLaunch()));
  for (double value : y.Get()) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace tessera
