// Activation functions and their slopes against plain double precision; their
// limits; the same bits wherever an element stands.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                             DType::kFloat64};

using Values = std::vector<double>;
using Sizes = std::vector<int64_t>;

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

TEST(SwiGluTest, ForwardAndBackwardMatchReference) {
  for (DType dtype : kFloats) {
    for (const Sizes& strides : {Sizes{33, 1}, Sizes{1, 7}, Sizes{70, 2}}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " stride " +
                   std::to_string(strides[1]));
      std::vector<HostTensor> t;
      for (int i = 0; i < 6; ++i)
        t.emplace_back(dtype, Sizes{7, 33}, strides, 1);
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
