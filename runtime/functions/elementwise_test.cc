// Gradients of elementwise functions and of sums, by central differences; and
// what float64 checks cannot see: casts, broadcast leaves, saved values.
#include "runtime/functions/elementwise.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/functions/reduce.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;

struct Case {
  const char* name;
  DifferentiableFunction f;
  std::vector<Shape> shapes;
  double low = -2;
  double high = 2;
};

const std::vector<Case>& Cases() {
  using namespace functions;  // NOLINT: a table of functions.
  static const auto* cases = new std::vector<Case>{
      {"Add",
       [](const Variables& v) { return Add(v[0], v[1]); },
       {{3, 4}, {3, 4}}},
      {"Add row",
       [](const Variables& v) { return Add(v[0], v[1]); },
       {{2, 3, 4}, {4}}},
      {"Add column",
       [](const Variables& v) { return Add(v[0], v[1]); },
       {{3, 1}, {3, 4}}},
      {"Sub",
       [](const Variables& v) { return Sub(v[0], v[1]); },
       {{3, 4}, {1, 4}}},
      {"Mul",
       [](const Variables& v) { return Mul(v[0], v[1]); },
       {{3, 4}, {3, 1}}},
      {"Mul scalar",
       [](const Variables& v) { return Mul(v[0], v[1]); },
       {{}, {3, 4}}},
      {"Div",
       [](const Variables& v) { return Div(v[0], v[1]); },
       {{3, 4}, {4}},
       0.5,
       2},
      {"Square of a shared input",
       [](const Variables& v) { return Mul(v[0], v[0]); },
       {{5}}},
      {"Scale", [](const Variables& v) { return Scale(v[0], -1.5); }, {{7}}},
      {"AddScalar",
       [](const Variables& v) { return AddScalar(v[0], 3); },
       {{7}}},
      {"GeluTanh",
       [](const Variables& v) { return Gelu(v[0], GeluKind::kTanh); },
       {{5, 7}},
       -4,
       4},
      {"GeluErf",
       [](const Variables& v) { return Gelu(v[0], GeluKind::kErf); },
       {{5, 7}},
       -4,
       4},
      {"Silu", [](const Variables& v) { return Silu(v[0]); }, {{33}}, -6, 6},
      {"Relu", [](const Variables& v) { return Relu(v[0]); }, {{33}}},
      {"Square", [](const Variables& v) { return Square(v[0]); }, {{33}}},
      {"Sqrt", [](const Variables& v) { return Sqrt(v[0]); }, {{33}}, 0.5, 4},
      {"Exp", [](const Variables& v) { return Exp(v[0]); }, {{33}}},
      {"Log", [](const Variables& v) { return Log(v[0]); }, {{33}}, 0.5, 4},
      {"Tanh", [](const Variables& v) { return Tanh(v[0]); }, {{33}}},
      {"SwiGlu",
       [](const Variables& v) { return SwiGlu(v[0], v[1]); },
       {{3, 5}, {3, 5}}},
      {"Cast to the same",
       [](const Variables& v) { return Cast(v[0], DType::kFloat64); },
       {{3}}},
      {"Sum", [](const Variables& v) { return Sum(v[0]); }, {{3, 5}}},
      {"Mean", [](const Variables& v) { return Mean(v[0]); }, {{3, 5}}},
      {"Sum of a dim",
       [](const Variables& v) { return Sum(v[0], 1); },
       {{3, 5, 2}}},
      {"Mean of a kept dim",
       [](const Variables& v) { return Mean(v[0], -1, true); },
       {{3, 5}}},
      {"MaskedFill",
       [](const Variables& v) {
         const Tensor mask =
             Tensor::FromVector<bool>({true, false, false}, {3});
         return MaskedFill(v[0], mask, 9);
       },
       {{4, 3}}},
  };
  return *cases;
}

TEST(ElementwiseFunctionsTest, GradientsMatchDifferences) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Variables inputs;
    for (const Shape& shape : c.shapes) {
      inputs.push_back(RandomLeaf(shape, inputs.size() + 1, c.low, c.high));
    }
    EXPECT_TRUE(GradCheck(c.f, inputs));
  }
}

TEST(ElementwiseFunctionsTest, OnlyWantedGradientsAreMade) {
  const Variable a = RandomLeaf({3}, 1);
  const Variable b(RandomLeaf({3}, 2).data());
  functions::Sum(functions::Mul(a, b)).Backward();
  EXPECT_EQ(a.grad().ToDoubles(), b.data().ToDoubles());
  EXPECT_FALSE(b.grad().defined());
}

TEST(ElementwiseFunctionsTest, CastPassesGradientsBack) {
  const Variable x(Tensor::FromVector<float>({1.001f, 2, 3}, {3}), true);
  const Variable y = functions::Cast(x, DType::kBFloat16);
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  EXPECT_EQ(y.data().ToDoubles(), (std::vector<double>{1, 2, 3}));
  functions::Sum(functions::Mul(y, y)).Backward();
  EXPECT_EQ(x.grad().dtype(), DType::kFloat32);
  EXPECT_EQ(x.grad().ToDoubles(), (std::vector<double>{2, 4, 6}));
}

TEST(ElementwiseFunctionsTest, CastToIntegersIsRefused) {
  const Variable x = RandomLeaf({3}, 1);
  EXPECT_THROWS_ERROR(functions::Cast(x, DType::kInt64),
                      absl::StatusCode::kInvalidArgument, "int64");
}

TEST(ElementwiseFunctionsTest, WritesBetweenForwardAndBackwardAreCaught) {
  const Variable x = RandomLeaf({3}, 1);
  const Variable y = functions::Sum(functions::Square(x));
  ops::ScaleInPlace(x.data(), 2);
  EXPECT_THROWS_ERROR(y.Backward(), absl::StatusCode::kFailedPrecondition,
                      "Square");
}

}  // namespace
}  // namespace tessera
