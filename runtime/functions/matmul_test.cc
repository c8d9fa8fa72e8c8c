// Gradients of products, and where those of weights go.
#include "runtime/functions/matmul.h"

#include "runtime/autograd/node.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using functions::Linear;
using functions::MatMul;
using functions::WeightLayout;

Variable MatMulOf(const std::vector<Variable>& in) {
  return MatMul(in[0], in[1]);
}

DifferentiableFunction LinearOf(WeightLayout layout) {
  return [layout](const std::vector<Variable>& in) {
    return Linear(in[0], in[1], in.size() > 2 ? in[2] : Variable(), layout);
  };
}

Shape WeightShape(WeightLayout layout, int64_t in, int64_t out) {
  return layout == WeightLayout::kOutIn ? Shape{out, in} : Shape{in, out};
}

TEST(MatMulFunctionTest, Gradients) {
  EXPECT_TRUE(
      GradCheck(MatMulOf, {RandomLeaf({7, 5}, 1), RandomLeaf({5, 3}, 2)}));
  EXPECT_TRUE(GradCheck(MatMulOf,
                        {RandomLeaf({2, 3, 4, 5}, 1), RandomLeaf({5, 6}, 2)}));
  EXPECT_TRUE(GradCheck(
      MatMulOf, {RandomLeaf({2, 3, 4, 5}, 1), RandomLeaf({2, 3, 5, 6}, 2)}));
  EXPECT_TRUE(
      GradCheck(MatMulOf, {RandomLeaf({0, 5}, 1), RandomLeaf({5, 3}, 2)}));
}

TEST(MatMulFunctionTest, OneOperandAlone) {
  for (int frozen : {0, 1}) {
    Variable a = RandomLeaf({4, 5}, 1), b = RandomLeaf({5, 3}, 2);
    (frozen == 0 ? a : b).set_requires_grad(false);
    EXPECT_TRUE(GradCheck(MatMulOf, {a, b})) << frozen;
    EXPECT_FALSE((frozen == 0 ? a : b).grad().defined());
  }
}

TEST(MatMulFunctionTest, AnOperandTwice) {
  const auto square = [](const std::vector<Variable>& in) {
    return MatMul(in[0], in[0]);
  };
  EXPECT_TRUE(GradCheck(square, {RandomLeaf({4, 4}, 1)}));
}

TEST(MatMulFunctionTest, TransposedViews) {
  const auto f = [](const std::vector<Variable>& in) {
    const Variable a(in[0].data().Transpose(0, 1));
    return MatMul(a, in[1]);
  };
  Variable a = RandomLeaf({5, 4}, 1);
  a.set_requires_grad(false);
  EXPECT_TRUE(GradCheck(f, {a, RandomLeaf({5, 3}, 2)}));
}

TEST(MatMulFunctionTest, SaysWhatDoesNotFit) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Variable a = RandomLeaf({4, 5}, 1);
  EXPECT_THROWS_ERROR(MatMul(a, a), kInvalid, "equal inner sizes; got a");
  EXPECT_THROWS_ERROR(MatMul(a, RandomLeaf({5}, 1)), kInvalid, "two dims");
  EXPECT_THROWS_ERROR(
      MatMul(RandomLeaf({2, 4, 5}, 1), RandomLeaf({3, 5, 2}, 1)), kInvalid,
      "leading dims");
  const Variable i(Tensor::FromVector(std::vector<int32_t>{1}, {1, 1}));
  EXPECT_THROWS_ERROR(MatMul(i, i), kInvalid, "floats of one dtype");
}

class LinearTest : public ::testing::TestWithParam<WeightLayout> {};

TEST_P(LinearTest, Gradients) {
  const Shape weight = WeightShape(GetParam(), 5, 3);
  const auto f = LinearOf(GetParam());
  for (const Shape& x : {Shape{7, 5}, Shape{2, 3, 5}, Shape{5}, Shape{1, 5}}) {
    EXPECT_TRUE(GradCheck(
        f, {RandomLeaf(x, 1), RandomLeaf(weight, 2), RandomLeaf({3}, 3)}))
        << x.ToString();
    EXPECT_TRUE(GradCheck(f, {RandomLeaf(x, 1), RandomLeaf(weight, 2)}));
  }
}

TEST_P(LinearTest, FrozenInputs) {
  for (int wanted : {0, 1, 2}) {
    std::vector<Variable> in = {RandomLeaf({4, 5}, 1),
                                RandomLeaf(WeightShape(GetParam(), 5, 3), 2),
                                RandomLeaf({3}, 3)};
    for (int v : {0, 1, 2}) in[v].set_requires_grad(v == wanted);
    EXPECT_TRUE(GradCheck(LinearOf(GetParam()), in)) << wanted;
    for (int v : {0, 1, 2}) {
      EXPECT_EQ(in[v].grad().defined(), v == wanted);
    }
  }
}

// A rank may have no rows: its weights' gradients are then zeros.
TEST_P(LinearTest, NoRowsGiveZeroGradients) {
  const Variable x = RandomLeaf({0, 5}, 1);
  const Variable weight = RandomLeaf(WeightShape(GetParam(), 5, 3), 2);
  const Variable bias = RandomLeaf({3}, 3);
  const Variable y = Linear(x, weight, bias, GetParam());
  EXPECT_EQ(y.shape(), (Shape{0, 3}));
  y.Backward(Tensor::FromVector(std::vector<double>(), {0, 3}));
  EXPECT_EQ(weight.grad().ToDoubles(), std::vector<double>(15));
  EXPECT_EQ(bias.grad().ToDoubles(), std::vector<double>(3));
}

// Gradients of 16-bit weights are float32, and small contributions to a large
// sum are kept.
TEST_P(LinearTest, AccumulatesInFloat32) {
  const Tensor ones = Tensor::FromVector(
      std::vector<bfloat16>(15, bfloat16(1.0f)), WeightShape(GetParam(), 5, 3));
  Variable weight(ones, /*requires_grad=*/true);
  const Tensor x =
      Tensor::FromVector(std::vector<bfloat16>(5, bfloat16(1.0f)), {1, 5});
  const auto backward = [&](float grad) {
    const Variable y = Linear(Variable(x), weight, Variable(), GetParam());
    y.Backward(
        Tensor::FromVector(std::vector<bfloat16>(3, bfloat16(grad)), {1, 3}));
  };
  backward(1024);
  for (int i = 0; i < 3; ++i) backward(0.5);
  EXPECT_EQ(weight.grad().dtype(), DType::kFloat32);
  EXPECT_EQ(weight.grad().ToDoubles(), std::vector<double>(15, 1025.5));
}

// A leaf's gradient goes into a slice of somebody else's buffer.
class SliceSink final : public GradientSink {
 public:
  explicit SliceSink(Tensor slice) : slice_(std::move(slice)) {}
  void BeforeUse() override { ++uses_; }
  void Expect(int64_t n) override { expected_ += n; }
  GradientTarget Target() override { return {slice_, contributed_ > 0}; }
  void Contributed() override { ++contributed_; }

  int64_t uses_ = 0, expected_ = 0, contributed_ = 0;

 private:
  Tensor slice_;
};

TEST_P(LinearTest, WritesWhereTheLeafWantsIt) {
  const Variable x = RandomLeaf({4, 5}, 1);
  const Variable weight = RandomLeaf(WeightShape(GetParam(), 5, 3), 2);
  const Variable plain(weight.data(), /*requires_grad=*/true);
  const Tensor buffer = Tensor::FromVector(std::vector<double>(20, 7), {20});
  auto sink = std::make_shared<SliceSink>(
      buffer.Narrow(0, 3, 15).Reshape(weight.shape()));
  weight.impl()->sink = sink;
  const Tensor grad = Tensor::FromVector(RandomValues(12, 9), {4, 3});
  for (int runs = 1; runs <= 2; ++runs) {
    Linear(x, weight, Variable(), GetParam()).Backward(grad);
    Linear(x, plain, Variable(), GetParam()).Backward(grad);
    const std::vector<double> all = buffer.ToDoubles();
    const std::vector<double> expected = plain.grad().ToDoubles();
    EXPECT_EQ(std::vector<double>(&all[3], &all[18]), expected);
    EXPECT_EQ(all[2], 7);
    EXPECT_EQ(all[18], 7);
    EXPECT_EQ(sink->contributed_, runs);
    EXPECT_EQ(sink->expected_, runs);
  }
  EXPECT_GE(sink->uses_, 2);
}

TEST_P(LinearTest, MetaTensorsHaveShapesOnly) {
  const auto meta = [](const Shape& shape) {
    return Variable(Tensor::Empty(shape, {DType::kFloat32, kMetaDevice}));
  };
  const Variable y =
      Linear(meta({2, 3, 5}), meta(WeightShape(GetParam(), 5, 4)), meta({4}),
             GetParam());
  EXPECT_EQ(y.shape(), (Shape{2, 3, 4}));
  EXPECT_TRUE(y.data().is_meta());
}

TEST_P(LinearTest, SaysWhatDoesNotFit) {
  const Variable weight = RandomLeaf(WeightShape(GetParam(), 5, 3), 2);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THROWS_ERROR(
      Linear(RandomLeaf({4, 3}, 1), weight, Variable(), GetParam()), kInvalid,
      "Linear: wants x [..., in]");
  EXPECT_THROWS_ERROR(
      Linear(RandomLeaf({4, 5}, 1), weight, RandomLeaf({5}, 1), GetParam()),
      kInvalid, "bias float64 [5]");
}

INSTANTIATE_TEST_SUITE_P(Layouts, LinearTest,
                         ::testing::Values(WeightLayout::kOutIn,
                                           WeightLayout::kInOut));

}  // namespace
}  // namespace tessera
