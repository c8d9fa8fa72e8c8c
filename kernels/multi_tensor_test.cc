// Lists of tensors: scaling, filling, copying.
#include "kernels/multi_tensor.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

TEST(MultiTensorTest, ScalesEachByFactorAndCoefficient) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    const HostTensor a = HostTensor::Of(dtype, RandomValues(33, 1), {33}, 1);
    const HostTensor none(dtype, {0});
    const HostTensor b = HostTensor::Of(dtype, RandomValues(7, 2), {7, 1});
    const HostTensor half = HostTensor::Of(DType::kFloat32, {0.5}, {1});
    Values expected_a = a.Get();
    Values expected_b = b.Get();
    for (double& v : expected_a) v *= 1.5;
    for (double& v : expected_b) v *= 1.5;
    ASSERT_OK(cpu::MultiScale(
        {{a.view(), none.view(), b.view()}, 3, half.view()}, TestLaunch()));
    EXPECT_TRUE(AllCloseAs(dtype, a.Get(), expected_a));
    EXPECT_TRUE(AllCloseAs(dtype, b.Get(), expected_b));
  }
}

TEST(MultiTensorTest, FillsAndCopies) {
  const HostTensor a(DType::kFloat32, {5});
  const HostTensor b(DType::kBFloat16, {3, 2}, {1, 3});
  ASSERT_OK(cpu::MultiFill({{a.view(), b.view()}, 2}, TestLaunch()));
  EXPECT_EQ(a.Get(), Values(5, 2));
  EXPECT_EQ(b.Get(), Values(6, 2));
  const HostTensor x =
      HostTensor::Of(DType::kFloat32, {1, 2, 3, 4, 5, 6}, {3, 2});
  const HostTensor y = HostTensor::Of(DType::kInt32, {5, 4, 3, 2, 1}, {5});
  ASSERT_OK(cpu::MultiCopy({{{x.view(), b.view()}, {y.view(), a.view()}}},
                           TestLaunch()));
  EXPECT_EQ(b.Get(), x.Get());
  EXPECT_EQ(a.Get(), y.Get());
}

}  // namespace
}  // namespace tessera
