// What ops add to kernels: shapes, broadcasting, checks, meta tensors,
// versions.
#include "runtime/ops/elementwise.h"

#include <vector>

#include "gtest/gtest.h"
#include "runtime/device/device.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Floats(const std::vector<float>& values, const Shape& shape) {
  return Tensor::FromVector(values, shape);
}

TEST(ElementwiseOpsTest, BroadcastsBothSides) {
  const Tensor a = Floats({1, 2, 3}, {3, 1});
  const Tensor b = Floats({10, 20}, {2});
  const Tensor y = ops::Add(a, b);
  EXPECT_EQ(y.shape(), (Shape{3, 2}));
  EXPECT_EQ(y.ToDoubles(), (Values{11, 21, 12, 22, 13, 23}));
  EXPECT_EQ(ops::Sub(a, b).ToDoubles()[5], 3 - 20);
  EXPECT_EQ(ops::Div(b, a).ToDoubles()[3], 10);
}

TEST(ElementwiseOpsTest, CopyCastCloneContiguous) {
  const Tensor x = Floats({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor turned = x.Transpose(0, 1);
  EXPECT_EQ(ops::Contiguous(turned).ToVector<float>(),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(ops::Contiguous(x).storage(), x.storage());
  EXPECT_NE(ops::Clone(x).storage(), x.storage());
  EXPECT_EQ(ops::Cast(x, DType::kFloat32).storage(), x.storage());
  EXPECT_EQ(ops::Cast(turned, DType::kInt64).ToVector<int64_t>(),
            (std::vector<int64_t>{1, 4, 2, 5, 3, 6}));
  EXPECT_THROWS_ERROR(ops::Copy(x, turned), kInvalid, "[3, 2]");
}

TEST(ElementwiseOpsTest, FillsAndRanges) {
  EXPECT_EQ(ops::Ones({2}).ToDoubles(), (Values{1, 1}));
  EXPECT_EQ(ops::Zeros({0}).num_elements(), 0);
  EXPECT_EQ(ops::Full({2}, 7, {DType::kInt32}).ToDoubles(), (Values{7, 7}));
  EXPECT_EQ(ops::Arange(3).ToVector<int64_t>(),
            (std::vector<int64_t>{0, 1, 2}));
  const Tensor x = ops::Zeros({2, 3});
  ops::Fill(x.Narrow(1, 1, 1), 5);
  EXPECT_EQ(x.ToDoubles(), (Values{0, 5, 0, 0, 5, 0}));
}

TEST(ElementwiseOpsTest, InPlaceOpsWriteThroughViewsAndBumpVersions) {
  const Tensor x = ops::Ones({2, 3});
  const int64_t version = x.storage()->version();
  ops::AddInto(x.Narrow(0, 1, 1), Floats({1, 2, 3}, {3}), 2);
  ops::ScaleInPlace(x.Narrow(0, 0, 1), -1);
  ops::MulInto(x, Floats({1, 10}, {2, 1}));
  EXPECT_EQ(x.ToDoubles(), (Values{-1, -1, -1, 30, 50, 70}));
  EXPECT_EQ(x.storage()->version(), version + 3);
}

TEST(ElementwiseOpsTest, AddIntoWidens) {
  const Tensor sum = ops::Ones({3});
  ops::AddInto(sum, ops::Full({3}, 0.5, {DType::kBFloat16}));
  EXPECT_EQ(sum.ToDoubles(), (Values{1.5, 1.5, 1.5}));
  EXPECT_THROWS_ERROR(ops::AddInto(Floats({1}, {1}), sum), kInvalid, "AddInto");
}

TEST(ElementwiseOpsTest, WhereAndMaskedFill) {
  const Tensor mask = Tensor::FromVector<bool>({true, false}, {2});
  const Tensor x = Floats({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(ops::MaskedFill(x, mask, 9).ToDoubles(), (Values{9, 2, 9, 4}));
  EXPECT_EQ(ops::Where(mask, x, ops::Zeros({})).ToDoubles(),
            (Values{1, 0, 3, 0}));
}

TEST(ElementwiseOpsTest, ErrorsNameOperationAndOperands) {
  const Tensor x = Floats({1, 2, 3}, {3});
  const Tensor i = ops::Arange(3);
  EXPECT_THROWS_ERROR(ops::Add(x, i), kInvalid, "Add: wants one dtype");
  EXPECT_THROWS_ERROR(ops::Add(x, ops::Ones({2})), kInvalid, "Add");
  EXPECT_THROWS_ERROR(ops::Unary(UnaryOp::kSilu, i), kInvalid, "int64");
  EXPECT_THROWS_ERROR(ops::SwiGlu(x, ops::Ones({2})), kInvalid, "SwiGlu");
  const Tensor elsewhere = ops::Ones({3}, {DType::kFloat32, CpuDevice(1)});
  EXPECT_THROWS_ERROR(ops::Add(x, elsewhere), kInvalid, "cpu:1");
}

TEST(ElementwiseOpsTest, MetaTensorsGetShapesOnly) {
  const TensorOptions meta = {DType::kFloat32, kMetaDevice};
  const Tensor a = ops::Zeros({3, 1}, meta);
  const Tensor b = ops::Ones({4}, meta);
  const Tensor y = ops::Unary(UnaryOp::kGeluErf, ops::Mul(a, b));
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  EXPECT_EQ(ops::Cast(y, DType::kBFloat16).dtype(), DType::kBFloat16);
  EXPECT_EQ(ops::SwiGluBackward(y, y, y).gate.shape(), y.shape());
  EXPECT_THROWS_ERROR(ops::Add(y, ops::Ones({3}, meta)), kInvalid, "Add");
}

}  // namespace
}  // namespace tessera
