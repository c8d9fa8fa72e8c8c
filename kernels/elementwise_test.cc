// Elementwise kernels against plain loops in double precision: every dtype, odd
// shapes, strides, offsets.
#include "kernels/elementwise.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                             DType::kFloat64};
constexpr DType kNumbers[] = {
    DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
    DType::kInt32,   DType::kInt64,    DType::kUInt8};
constexpr DType kAll[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                          DType::kFloat64, DType::kInt32,    DType::kInt64,
                          DType::kUInt8,   DType::kBool};

using Values = std::vector<double>;
using Sizes = std::vector<int64_t>;

// Layouts of a [rows, columns] matrix.
struct Layout {
  const char* name;
  std::function<Sizes(int64_t rows, int64_t columns)> strides;
  int64_t offset;
};
const std::vector<Layout>& Layouts() {
  static const auto* layouts = new std::vector<Layout>{
      {"row-major",
       [](int64_t, int64_t c) {
         return Sizes{c, 1};
       },
       0},
      {"offset",
       [](int64_t, int64_t c) {
         return Sizes{c, 1};
       },
       5},
      {"padded rows",
       [](int64_t, int64_t c) {
         return Sizes{c + 3, 1};
       },
       1},
      {"column-major",
       [](int64_t r, int64_t) {
         return Sizes{1, r};
       },
       0},
      {"every second",
       [](int64_t, int64_t c) {
         return Sizes{2 * c, 2};
       },
       2},
  };
  return *layouts;
}

struct MatrixShape {
  int64_t rows;
  int64_t columns;
};
constexpr MatrixShape kShapes[] = {{0, 5},  {1, 1},  {7, 1},
                                   {1, 33}, {7, 33}, {33, 70}};

HostTensor Matrix(DType dtype, MatrixShape shape, const Layout& layout) {
  return HostTensor(dtype, {shape.rows, shape.columns},
                    layout.strides(shape.rows, shape.columns), layout.offset);
}

Values ValuesFor(DType dtype, int64_t n, uint64_t seed) {
  if (dtype == DType::kBool) return RandomIntegers(n, seed, 0, 1);
  if (dtype == DType::kUInt8) return RandomIntegers(n, seed, 0, 10);
  if (IsFloating(dtype)) {
    return RoundedTo(dtype, RandomValues(n, seed, -4, 4));
  }
  return RandomIntegers(n, seed, -10, 10);
}

// Calls `test` for shapes and pairs of layouts.
void ForEachCase(const std::function<void(MatrixShape, const Layout&,
                                          const Layout&)>& test) {
  for (const MatrixShape& shape : kShapes) {
    for (const Layout& a : Layouts()) {
      for (const Layout& b : Layouts()) {
        SCOPED_TRACE(std::to_string(shape.rows) + "x" +
                     std::to_string(shape.columns) + " " + a.name + " to " +
                     b.name);
        test(shape, a, b);
      }
    }
  }
}

TEST(CopyTest, AnyStridesAndDTypes) {
  ForEachCase([](MatrixShape shape, const Layout& a, const Layout& b) {
    const int64_t n = shape.rows * shape.columns;
    for (DType from : kAll) {
      for (DType to : kAll) {
        HostTensor src = Matrix(from, shape, a);
        HostTensor dst = Matrix(to, shape, b);
        // Whole and not negative: the same in every dtype.
        const Values values =
            RandomIntegers(n, 1, 0, from == DType::kBool ? 1 : 100);
        src.Set(values);
        ASSERT_OK(cpu::Copy({src.view(), dst.view()}, TestLaunch()));
        ASSERT_EQ(dst.Get(), RoundedTo(to, values))
            << DTypeName(from) << " to " << DTypeName(to);
        ASSERT_TRUE(std::string(b.name) == "every second" ||
                    std::string(b.name) == "padded rows" || dst.GuardsIntact());
      }
    }
  });
}

TEST(CopyTest, RoundsToNearestEvenAndKeepsSpecials) {
  const float inf = std::numeric_limits<float>::infinity();
  const Values values = {1 + 0x1p-8, 1 + 3 * 0x1p-8, -0.0,    inf,
                         -inf,       1e-45,          3.39e38, 0x1p-133,
                         70000,      std::nan("")};
  const int64_t n = values.size();
  HostTensor src = HostTensor::Of(DType::kFloat32, values, {n});
  for (DType to : {DType::kBFloat16, DType::kFloat16}) {
    HostTensor dst(to, {n});
    ASSERT_OK(cpu::Copy({src.view(), dst.view()}, TestLaunch()));
    EXPECT_TRUE(AllClose(dst.Get(), RoundedTo(to, values), 0));
  }
}

TEST(CopyTest, PermutesFourDims) {
  const Sizes sizes = {3, 5, 4, 37};  // Of the result.
  HostTensor src(DType::kFloat32, sizes, {37 * 5, 37, 37 * 15, 1});
  HostTensor swapped(DType::kFloat32, sizes, {20 * 37, 4, 1, 20});
  HostTensor dst(DType::kFloat32, sizes, 3);
  const Values values = RandomValues(3 * 5 * 4 * 37, 1, 0, 1);
  src.Set(values);
  ASSERT_OK(cpu::Copy({src.view(), swapped.view()}, TestLaunch(3)));
  ASSERT_OK(cpu::Copy({swapped.view(), dst.view()}, TestLaunch(2)));
  EXPECT_EQ(dst.Get(), src.Get());
}

TEST(CopyTest, ManyThreadsOnLargeTensors) {
  HostTensor src(DType::kFloat32, {300, 401}, {1, 300});
  HostTensor dst(DType::kFloat32, {300, 401}, 1);
  src.Set(RandomValues(300 * 401, 1));
  ASSERT_OK(cpu::Copy({src.view(), dst.view()}, TestLaunch(5)));
  EXPECT_EQ(dst.Get(), src.Get());
}

TEST(FillTest, EveryDTypeAndStride) {
  ForEachCase([](MatrixShape shape, const Layout& a, const Layout&) {
    for (DType dtype : kAll) {
      HostTensor dst = Matrix(dtype, shape, a);
      ASSERT_OK(cpu::Fill({dst.view(), 3}, TestLaunch()));
      ASSERT_EQ(dst.Get(),
                RoundedTo(dtype, Values(shape.rows * shape.columns, 3)));
    }
  });
}

double Reference(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
  }
  return 0;
}

TEST(BinaryTest, MatchesReference) {
  ForEachCase([](MatrixShape shape, const Layout& la, const Layout& ly) {
    const int64_t n = shape.rows * shape.columns;
    for (DType dtype : kNumbers) {
      for (BinaryOp op :
           {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv}) {
        HostTensor a = Matrix(dtype, shape, la);
        HostTensor b = Matrix(dtype, shape, ly);
        HostTensor y = Matrix(dtype, shape, ly);
        a.Set(ValuesFor(dtype, n, 1));
        Values vb = ValuesFor(dtype, n, 2);
        for (double& v : vb) v = op == BinaryOp::kDiv && v == 0 ? 3 : v;
        b.Set(vb);
        ASSERT_OK(
            cpu::Binary({op, a.view(), b.view(), y.view()}, TestLaunch()));
        const Values va = a.Get();
        const Values rb = b.Get();
        Values expected(n);
        for (int64_t i = 0; i < n; ++i) {
          expected[i] = Reference(op, va[i], rb[i]);
          if (dtype == DType::kUInt8) {
            expected[i] = static_cast<uint8_t>(
                static_cast<int64_t>(std::trunc(expected[i])));
          }
          if (!IsFloating(dtype)) expected[i] = std::trunc(expected[i]);
        }
        ASSERT_TRUE(AllCloseAs(dtype, y.Get(), expected)) << DTypeName(dtype);
      }
    }
  });
}

TEST(BinaryTest, BroadcastsStrideZero) {
  HostTensor a = HostTensor::Of(DType::kFloat32, RandomValues(70, 1), {10, 7});
  HostTensor row = HostTensor::Of(DType::kFloat32, RandomValues(7, 2), {7});
  HostTensor column =
      HostTensor::Of(DType::kFloat32, RandomValues(10, 3), {10});
  HostTensor y(DType::kFloat32, {10, 7});
  TensorView row_view = a.view();
  row_view.data = row.view().data;
  row_view.strides = {0, 1};
  TensorView column_view = a.view();
  column_view.data = column.view().data;
  column_view.strides = {1, 0};
  ASSERT_OK(cpu::Binary({BinaryOp::kAdd, a.view(), row_view, y.view()},
                        TestLaunch()));
  ASSERT_OK(cpu::Binary({BinaryOp::kMul, y.view(), column_view, y.view()},
                        TestLaunch()));
  Values expected(70);
  for (int i = 0; i < 70; ++i) {
    expected[i] = (a.Get()[i] + row.Get()[i % 7]) * column.Get()[i / 7];
  }
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, y.Get(), expected));
}

TEST(BinaryTest, IntegersWrapAndDivideByZeroWithoutTrap) {
  const double least = std::numeric_limits<int32_t>::min();
  HostTensor a = HostTensor::Of(DType::kInt32, {least, 5, least}, {3});
  HostTensor b = HostTensor::Of(DType::kInt32, {-1, 0, -1}, {3});
  HostTensor y(DType::kInt32, {3});
  ASSERT_OK(cpu::Binary({BinaryOp::kDiv, a.view(), b.view(), y.view()},
                        TestLaunch()));
  EXPECT_EQ(y.Get(), (Values{least, 0, least}));
  ASSERT_OK(cpu::Binary({BinaryOp::kAdd, a.view(), b.view(), y.view()},
                        TestLaunch()));
  EXPECT_EQ(y.Get()[0], std::numeric_limits<int32_t>::max());
}

TEST(BinaryTest, RefusesMixedDTypesAndBool) {
  HostTensor a(DType::kFloat32, {3});
  HostTensor b(DType::kInt32, {3});
  HostTensor c(DType::kBool, {3});
  EXPECT_THAT(
      cpu::Binary({BinaryOp::kAdd, a.view(), b.view(), a.view()}, TestLaunch()),
      StatusIs(absl::StatusCode::kInvalidArgument, "int32"));
  EXPECT_THAT(
      cpu::Binary({BinaryOp::kAdd, c.view(), c.view(), c.view()}, TestLaunch()),
      StatusIs(absl::StatusCode::kInvalidArgument, "bool"));
}

struct UnaryCase {
  UnaryOp op;
  const char* name;
  std::function<double(double)> value;
  double low;
  double high;
};
const std::vector<UnaryCase>& UnaryCases() {
  static const auto* cases = new std::vector<UnaryCase>{
      {UnaryOp::kGeluTanh, "gelu tanh",
       [](double x) {
         return 0.5 * x *
                (1 +
                 std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
       },
       -6, 6},
      {UnaryOp::kGeluErf, "gelu erf",
       [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); },
       -6, 6},
      {UnaryOp::kSilu, "silu", [](double x) { return x / (1 + std::exp(-x)); },
       -10, 10},
      {UnaryOp::kRelu, "relu", [](double x) { return x > 0 ? x : 0; }, -2, 2},
      {UnaryOp::kSquare, "square", [](double x) { return x * x; }, -2, 2},
      {UnaryOp::kSqrt, "sqrt", [](double x) { return std::sqrt(x); }, 0.1, 9},
      {UnaryOp::kExp, "exp", [](double x) { return std::exp(x); }, -5, 5},
      {UnaryOp::kLog, "log", [](double x) { return std::log(x); }, 0.1, 9},
      {UnaryOp::kTanh, "tanh", [](double x) { return std::tanh(x); }, -4, 4},
  };
  return *cases;
}

TEST(UnaryTest, ValueAndSlopeMatchReference) {
  for (const UnaryCase& c : UnaryCases()) {
    for (DType dtype : kFloats) {
      for (int64_t n : {0, 1, 7, 33, 1000}) {
        SCOPED_TRACE(std::string(c.name) + " " + DTypeName(dtype));
        HostTensor x =
            HostTensor::Of(dtype, RandomValues(n, 1, c.low, c.high), {n}, 1);
        HostTensor dy = HostTensor::Of(dtype, RandomValues(n, 2), {n}, 2);
        HostTensor y(dtype, {n}, 3);
        HostTensor dx(dtype, {n}, 4);
        ASSERT_OK(cpu::Unary({c.op, x.view(), y.view()}, TestLaunch()));
        ASSERT_OK(cpu::UnaryBackward({c.op, x.view(), dy.view(), dx.view()},
                                     TestLaunch()));
        Values value(n);
        Values slope(n);
        const double h = 1e-5;
        const Values rx = x.Get();
        const Values rdy = dy.Get();
        for (int64_t i = 0; i < n; ++i) {
          const double v = rx[i];
          value[i] = c.value(v);
          slope[i] = rdy[i] * (c.value(v + h) - c.value(v - h)) / (2 * h);
        }
        // A dozen roundings, some of them before a steep function.
        ASSERT_TRUE(AllCloseAs(dtype, y.Get(), value, 16));
        // Errors of a slope are relative to 1: slopes near 0 cancel.
        slope.push_back(1);
        Values actual = dx.Get();
        actual.push_back(1);
        // A difference quotient is good to about 1e-9.
        ASSERT_TRUE(AllClose(actual, slope, Tolerance(dtype, 16) + 1e-8));
        ASSERT_TRUE(y.GuardsIntact() && dx.GuardsIntact());
      }
    }
  }
}

TEST(UnaryTest, ExtremesAreTheLimits) {
  const double inf = std::numeric_limits<double>::infinity();
  struct {
    UnaryOp op;
    double x, y, slope;
  } const cases[] = {
      {UnaryOp::kGeluTanh, 1e30, 1e30, 1}, {UnaryOp::kGeluTanh, -1e30, 0, 0},
      {UnaryOp::kGeluErf, 1e30, 1e30, 1},  {UnaryOp::kGeluErf, -1e30, 0, 0},
      {UnaryOp::kSilu, 1e30, 1e30, 1},     {UnaryOp::kSilu, -200, 0, 0},
      {UnaryOp::kExp, 100, inf, inf},      {UnaryOp::kExp, -200, 0, 0},
      {UnaryOp::kLog, 0, -inf, inf},       {UnaryOp::kTanh, 1e30, 1, 0},
      {UnaryOp::kTanh, -1e30, -1, 0},      {UnaryOp::kRelu, 0, 0, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(static_cast<int>(c.op));
    HostTensor x = HostTensor::Of(DType::kFloat32, {c.x}, {1});
    HostTensor one = HostTensor::Of(DType::kFloat32, {1}, {1});
    HostTensor y(DType::kFloat32, {1});
    HostTensor dx(DType::kFloat32, {1});
    ASSERT_OK(cpu::Unary({c.op, x.view(), y.view()}, TestLaunch()));
    ASSERT_OK(cpu::UnaryBackward({c.op, x.view(), one.view(), dx.view()},
                                 TestLaunch()));
    EXPECT_EQ(y.Get()[0], static_cast<float>(c.y));
    EXPECT_EQ(dx.Get()[0], c.slope);
  }
}

TEST(UnaryTest, NanStaysNan) {
  for (const UnaryCase& c : UnaryCases()) {
    for (DType dtype : kFloats) {
      HostTensor x = HostTensor::Of(dtype, {std::nan("")}, {1});
      HostTensor y(dtype, {1});
      ASSERT_OK(cpu::Unary({c.op, x.view(), y.view()}, TestLaunch()));
      EXPECT_TRUE(std::isnan(y.Get()[0])) << c.name;
    }
  }
}

TEST(UnaryTest, RefusesIntegers) {
  HostTensor x(DType::kInt64, {3});
  EXPECT_THAT(cpu::Unary({UnaryOp::kRelu, x.view(), x.view()}, TestLaunch()),
              StatusIs(absl::StatusCode::kInvalidArgument, "int64"));
}

TEST(AffineTest, MatchesReference) {
  for (DType dtype : kNumbers) {
    HostTensor x = HostTensor::Of(dtype, ValuesFor(dtype, 33, 1), {33}, 1);
    HostTensor y(dtype, {33}, 2);
    ASSERT_OK(cpu::Affine({x.view(), y.view(), 3, 2}, TestLaunch()));
    Values expected = x.Get();
    for (double& v : expected) v = 3 * v + 2;
    EXPECT_TRUE(AllCloseAs(dtype, y.Get(), expected)) << DTypeName(dtype);
  }
}

TEST(AffineTest, FactorOneChangesNoBit) {
  HostTensor x = HostTensor::Of(DType::kFloat32, {-0.0, 0.0, 1e-45}, {3});
  HostTensor y(DType::kFloat32, {3});
  ASSERT_OK(cpu::Affine({x.view(), y.view()}, TestLaunch()));
  EXPECT_EQ(y.Bytes(), x.Bytes());
}

TEST(AccumulateTest, EveryPairOfDTypes) {
  for (DType from : kAll) {
    for (DType to : kAll) {
      const bool narrow = IsFloating(from) && IsFloating(to) &&
                          from != DType::kFloat64 && to != DType::kFloat64;
      const bool allowed = narrow || (from == to && from != DType::kBool);
      HostTensor x = HostTensor::Of(from, ValuesFor(from, 33, 1), {33}, 1);
      HostTensor y = HostTensor::Of(to, ValuesFor(to, 33, 2), {33}, 2);
      Values expected = y.Get();
      for (int i = 0; i < 33; ++i) expected[i] += 2 * x.Get()[i];
      const absl::Status status =
          cpu::Accumulate({x.view(), y.view(), 2}, TestLaunch());
      ASSERT_EQ(status.ok(), allowed) << status;
      if (allowed) {
        EXPECT_TRUE(AllCloseAs(to, y.Get(), expected));
      }
    }
  }
}

TEST(AccumulateTest, IntoEverySecondColumnTouchesNoOther) {
  HostTensor x = HostTensor::Of(DType::kBFloat16, RandomValues(20, 1), {4, 5});
  HostTensor y(DType::kFloat32, {4, 5}, {10, 2});
  HostTensor between(DType::kFloat32, {4, 10});
  y.Set(Values(20, 1));
  const auto* words = y.view().as<uint32_t>();
  ASSERT_OK(cpu::Accumulate({x.view(), y.view()}, TestLaunch()));
  for (int i = 1; i < 39; i += 2) EXPECT_EQ(words[i], 0xa5a5a5a5u);
  Values expected = x.Get();
  for (double& v : expected) v += 1;
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, y.Get(), expected));
}

TEST(SwiGluTest, ForwardAndBackwardMatchReference) {
  for (DType dtype : kFloats) {
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + layout.name);
      const MatrixShape shape = {7, 33};
      std::vector<HostTensor> t;
      for (int i = 0; i < 6; ++i) t.push_back(Matrix(dtype, shape, layout));
      for (int i = 0; i < 3; ++i) t[i].Set(RandomValues(7 * 33, i, -3, 3));
      ASSERT_OK(
          cpu::SwiGlu({t[0].view(), t[1].view(), t[3].view()}, TestLaunch()));
      ASSERT_OK(cpu::SwiGluBackward(
          {t[0].view(), t[1].view(), t[2].view(), t[4].view(), t[5].view()},
          TestLaunch()));
      Values y, dgate, dup;
      for (int i = 0; i < 7 * 33; ++i) {
        const double g = t[0].Get()[i];
        const double s = 1 / (1 + std::exp(-g));
        const double dy = t[2].Get()[i];
        y.push_back(g * s * t[1].Get()[i]);
        dup.push_back(g * s * dy);
        dgate.push_back(dy * t[1].Get()[i] * s * (1 + g * (1 - s)));
      }
      EXPECT_TRUE(AllCloseAs(dtype, t[3].Get(), y, 4));
      EXPECT_TRUE(AllCloseAs(dtype, t[4].Get(), dgate, 4));
      EXPECT_TRUE(AllCloseAs(dtype, t[5].Get(), dup, 4));
    }
  }
}

TEST(WhereTest, SelectsByMask) {
  for (DType dtype : kAll) {
    for (const Layout& layout : Layouts()) {
      const MatrixShape shape = {7, 5};
      HostTensor mask = Matrix(DType::kBool, shape, layout);
      HostTensor a = Matrix(dtype, shape, layout);
      HostTensor b = HostTensor::Of(dtype, ValuesFor(dtype, 35, 2), {7, 5});
      HostTensor y = Matrix(dtype, shape, layout);
      mask.Set(ValuesFor(DType::kBool, 35, 3));
      a.Set(ValuesFor(dtype, 35, 1));
      ASSERT_OK(cpu::Where({mask.view(), a.view(), b.view(), y.view()},
                           TestLaunch()));
      for (int i = 0; i < 35; ++i) {
        ASSERT_EQ(y.Get()[i], mask.Get()[i] != 0 ? a.Get()[i] : b.Get()[i]);
      }
    }
  }
}

// The bits of an element must not depend on where it stands: vector body, tail
// or another alignment.
TEST(ElementwiseTest, SameBitsAtEveryOffset) {
  const int64_t n = 67;
  for (DType dtype : kFloats) {
    for (const UnaryCase& c : UnaryCases()) {
      std::vector<uint8_t> first_y, first_dx, first_sum;
      for (int64_t offset = 0; offset <= 33; ++offset) {
        const Values values = RandomValues(n, 1, c.low, c.high);
        HostTensor x = HostTensor::Of(dtype, values, {n}, offset);
        HostTensor y(dtype, {n}, offset);
        HostTensor dx(dtype, {n}, offset);
        ASSERT_OK(cpu::Unary({c.op, x.view(), y.view()}, TestLaunch()));
        ASSERT_OK(cpu::UnaryBackward({c.op, x.view(), x.view(), dx.view()},
                                     TestLaunch()));
        HostTensor sum = HostTensor::Of(dtype, values, {n}, offset);
        ASSERT_OK(cpu::Accumulate({y.view(), sum.view(), 0.3}, TestLaunch()));
        if (offset == 0) {
          first_y = y.Bytes();
          first_dx = dx.Bytes();
          first_sum = sum.Bytes();
        }
        ASSERT_EQ(y.Bytes(), first_y) << c.name << " at " << offset;
        ASSERT_EQ(dx.Bytes(), first_dx) << c.name << " at " << offset;
        ASSERT_EQ(sum.Bytes(), first_sum) << c.name << " at " << offset;
        // One by one.
        for (int64_t i = 0; i < n; i += 13) {
          HostTensor one(dtype, {1});
          HostTensor one_y(dtype, {1});
          one.Set({x.Get()[i]});
          ASSERT_OK(cpu::Unary({c.op, one.view(), one_y.view()}, TestLaunch()));
          ASSERT_EQ(one_y.Get()[0], y.Get()[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
