// Modules of one function each: shapes, start values, hooks.
#include <cmath>

#include "runtime/autograd/random_context.h"
#include "runtime/nn/dropout.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/module_list.h"
#include "runtime/nn/norm.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

Variable Input(const Shape& shape, uint64_t seed = 1) {
  std::vector<float> values;
  for (double v : RandomValues(shape.num_elements(), seed)) {
    values.push_back(static_cast<float>(v));
  }
  return Variable(Tensor::FromVector(values, shape));
}

std::vector<double> ValuesOf(const Variable& v) { return v.data().ToDoubles(); }

const Variable& Parameter(const Module& module, int i) {
  return module.own_parameters()[i].variable;
}

TEST(LayersTest, LinearHoldsOutIn) {
  Linear linear(3, 5);
  InitializeParameters(linear, 1);
  EXPECT_EQ(Parameter(linear, 0).shape(), (Shape{5, 3}));
  const Variable x = Input({2, 4, 3});
  const Variable y = linear(x);
  EXPECT_EQ(y.shape(), (Shape{2, 4, 5}));
  const auto in = ValuesOf(x), w = ValuesOf(Parameter(linear, 0)),
             b = ValuesOf(Parameter(linear, 1));
  std::vector<double> expected;
  for (int row = 0; row < 8; ++row) {
    for (int o = 0; o < 5; ++o) {
      double sum = b[o];
      for (int i = 0; i < 3; ++i) sum += in[row * 3 + i] * w[o * 3 + i];
      expected.push_back(sum);
    }
  }
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, ValuesOf(y), expected, 3));
}

TEST(LayersTest, Conv1DIsTheTransposedLinear) {
  Conv1D conv(3, 5, 0.02);
  InitializeParameters(conv, 1);
  EXPECT_EQ(Parameter(conv, 0).shape(), (Shape{3, 5}));
  EXPECT_EQ(ValuesOf(Parameter(conv, 1)), std::vector<double>(5, 0.0));
  Linear linear(3, 5, {.bias = false});
  EXPECT_EQ(linear.own_parameters().size(), 1u);
  Variable weight = Parameter(linear, 0);
  weight.set_data(Parameter(conv, 0).data().Transpose(0, 1));
  const Variable x = Input({4, 3});
  EXPECT_TRUE(
      AllCloseAs(DType::kFloat32, ValuesOf(conv(x)), ValuesOf(linear(x)), 3));
}

TEST(LayersTest, StartValues) {
  Linear plain(100, 40);
  InitializeParameters(plain, 1);
  for (int p : {0, 1}) {
    double largest = 0;
    for (double v : ValuesOf(Parameter(plain, p))) {
      largest = std::max(largest, std::abs(v));
    }
    EXPECT_LE(largest, 0.1);
    EXPECT_GT(largest, 0.08);
  }
  Linear normal(100, 40, {.init_stddev = 0.5});
  InitializeParameters(normal, 1);
  EXPECT_EQ(ValuesOf(Parameter(normal, 1)), std::vector<double>(40, 0.0));
  double squares = 0;
  for (double v : ValuesOf(Parameter(normal, 0))) squares += v * v;
  EXPECT_NEAR(std::sqrt(squares / 4000), 0.5, 0.03);
}

TEST(LayersTest, TiedLinearSharesItsWeight) {
  Embedding embedding(7, 3);
  Linear head(embedding.weight());
  EXPECT_TRUE(head.weight().Is(embedding.weight()));
  EXPECT_EQ(head(Input({2, 3})).shape(), (Shape{2, 7}));
}

TEST(LayersTest, NormsStartAsIdentityAfterNormalising) {
  LayerNorm layer(64, 1e-5);
  RmsNorm rms(64, 1e-5);
  InitializeParameters(layer, 1);
  InitializeParameters(rms, 1);
  const Variable x = Input({3, 64});
  for (const Variable& y : {layer(x), rms(x)}) {
    double squares = 0;
    for (double v : ValuesOf(y)) squares += v * v;
    EXPECT_NEAR(squares / (3 * 64), 1.0, 1e-3);
  }
}

TEST(LayersTest, DropoutActsInTrainingOnly) {
  Dropout dropout(0.5, "some.dropout");
  const Variable x(
      Tensor::FromVector(std::vector<float>(1000, 1.0f), {10, 100}));
  const RandomContextGuard guard({.seed = 1});
  int kept = 0;
  for (double v : ValuesOf(dropout(x))) {
    EXPECT_TRUE(v == 0.0 || v == 2.0);
    kept += v == 2.0;
  }
  EXPECT_NEAR(kept, 500, 80);
  dropout.Eval();
  EXPECT_TRUE(dropout(x).Is(x));
  EXPECT_TRUE(Dropout(0.0, "none")(x).Is(x));
  EXPECT_THROWS_ERROR(Dropout(1.0, "all"), absl::StatusCode::kInvalidArgument,
                      "wants a probability in [0, 1)");
}

// A hook may replace what it is given, as a cast does.
TEST(LayersTest, HooksSeeInputsAndOutputs) {
  Embedding embedding(7, 3);
  InitializeParameters(embedding, 1);
  int before = 0, after = 0;
  embedding.AddPreForwardHook(
      [&](Module&, const std::vector<Variable*>& inputs) {
        ++before;
        EXPECT_TRUE(inputs.empty());  // Ids are no variable.
      });
  const Variable other = Input({2, 3});
  embedding.AddPostForwardHook(
      [&](Module&, const std::vector<Variable*>& outputs) {
        ++after;
        ASSERT_EQ(outputs.size(), 1u);
        *outputs[0] = other;
      });
  EXPECT_TRUE(embedding(Tensor::FromVector<int64_t>({1, 2}, {2})).Is(other));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
}

TEST(LayersTest, ModuleListNamesByIndex) {
  ModuleList<Linear> list;
  list.Append(std::make_shared<Linear>(2, 3));
  list.Append(std::make_shared<Linear>(3, 2));
  EXPECT_EQ(list.size(), 2);
  EXPECT_EQ(list.NamedParameters()[2].name, "1.weight");
  EXPECT_EQ(list[1](Input({4, 3})).shape(), (Shape{4, 2}));
}

}  // namespace
}  // namespace tessera
