// Gradients of norms, and where those of their parameters go.
#include "runtime/functions/norm.h"

#include "runtime/functions/views.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;

TEST(NormTest, LayerNormGradients) {
  const auto f = [](const Variables& v) {
    return functions::LayerNorm(v[0], v[1], v[2], 1e-3);
  };
  for (const Shape& shape : {Shape{4, 7}, Shape{2, 3, 5}, Shape{1, 9}}) {
    const Shape size = {shape.dim(-1)};
    EXPECT_TRUE(GradCheck(
        f, {RandomLeaf(shape, 1), RandomLeaf(size, 2), RandomLeaf(size, 3)}));
  }
}

TEST(NormTest, LayerNormWithoutBias) {
  const auto f = [](const Variables& v) {
    return functions::LayerNorm(v[0], v[1], Variable(), 1e-3);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({3, 5}, 1), RandomLeaf({5}, 2)}));
}

TEST(NormTest, RmsNormGradients) {
  const auto f = [](const Variables& v) {
    return functions::RmsNorm(v[0], v[1], 1e-3);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({4, 7}, 1), RandomLeaf({7}, 2)}));
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 3, 5}, 1), RandomLeaf({5}, 2)}));
}

// Rows that are views of other memory.
TEST(NormTest, StridedRows) {
  const auto f = [](const Variables& v) {
    return functions::RmsNorm(functions::Transpose(v[0], 0, 1), v[1], 1e-3);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({7, 4}, 1), RandomLeaf({7}, 2)}));
}

// A weight that is a result and no leaf gets its gradient as a tensor.
TEST(NormTest, ComputedParameters) {
  const auto f = [](const Variables& v) {
    return functions::LayerNorm(v[0], functions::Narrow(v[1], 0, 1, 5),
                                functions::Narrow(v[1], 0, 2, 5), 1e-3);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({3, 5}, 1), RandomLeaf({8}, 2)}));
}

// FRZ: a frozen weight gets no gradient, and x still does.
TEST(NormTest, FrozenParameters) {
  Variable x = RandomLeaf({3, 5}, 1);
  Variable weight = RandomLeaf({5}, 2);
  weight.set_requires_grad(false);
  functions::RmsNorm(x, weight, 1e-5)
      .Backward(Tensor::FromVector(GradCheckWeights(15), {3, 5}));
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(NormTest, LowPrecisionKeepsFloat32ParameterGradients) {
  const auto bf16 = [](int64_t n, const Shape& shape) {
    std::vector<bfloat16> values;
    for (double v : RandomValues(n, 5, 0.5, 1.5)) {
      values.emplace_back(static_cast<float>(v));
    }
    return Variable(Tensor::FromVector(values, shape), true);
  };
  const Variable x = bf16(15, {3, 5});
  const Variable weight = bf16(5, {5});
  const Variable y = functions::RmsNorm(x, weight, 1e-5);
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  y.Backward(bf16(15, {3, 5}).data());
  EXPECT_EQ(weight.grad().dtype(), DType::kFloat32);
}

TEST(NormTest, NoRowsGiveZeroGradients) {
  Variable x = RandomLeaf({0, 5}, 1);
  Variable weight = RandomLeaf({5}, 2);
  const Variable y = functions::RmsNorm(x, weight, 1e-5);
  y.Backward(y.data());
  EXPECT_EQ(weight.grad().ToDoubles(), std::vector<double>(5, 0.0));
}

TEST(NormTest, WrongShapesAreNamed) {
  EXPECT_THROWS_ERROR(
      functions::RmsNorm(RandomLeaf({3, 5}, 1), RandomLeaf({4}, 2), 1e-5),
      absl::StatusCode::kInvalidArgument, "RmsNorm: wants weight");
  EXPECT_THROWS_ERROR(
      functions::LayerNorm(RandomLeaf({3, 5}, 1), RandomLeaf({5}, 2),
                           RandomLeaf({6}, 2), 1e-5),
      absl::StatusCode::kInvalidArgument, "LayerNorm: wants bias");
}

}  // namespace
}  // namespace tessera
