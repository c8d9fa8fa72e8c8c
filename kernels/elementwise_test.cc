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
  HostTensor bytes = HostTensor::Of(DType::kUInt8, {255, 254, 7}, {3});
  HostTensor all_ones = HostTensor::Of(DType::kUInt8, {255, 255, 0}, {3});
  ASSERT_OK(
      cpu::Binary({BinaryOp::kDiv, bytes.view(), all_ones.view(), bytes.view()},
                  TestLaunch()));
  EXPECT_EQ(bytes.Get(), (Values{1, 0, 0}));
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

}  // namespace
}  // namespace tessera
