// Norms and their gradients against a double-precision reference.
#include "kernels/norm.h"

#include <cmath>
#include <functional>
#include <vector>

#include "tests/testing/host_tensor.h"
#include "tests/testing/instruction_sets.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                             DType::kFloat64};

// One problem, its rounded inputs, and the exact results.
struct Case {
  int64_t rows, cols;
  bool centered;  // Layer norm; otherwise RMS norm.
  double eps = 1e-5;
  Values x = {}, weight = {}, bias = {}, grad_y = {};
  Values y = {}, mean = {}, rstd = {};
  Values grad_x = {}, grad_weight = {}, grad_bias = {};
};

void Solve(Case& c) {
  c.y.resize(c.rows * c.cols);
  c.grad_x.resize(c.rows * c.cols);
  c.mean.resize(c.rows);
  c.rstd.resize(c.rows);
  c.grad_weight.assign(c.cols, 0);
  c.grad_bias.assign(c.cols, 0);
  for (int64_t r = 0; r < c.rows; ++r) {
    const double* x = &c.x[r * c.cols];
    const double* dy = &c.grad_y[r * c.cols];
    double mean = 0, square = 0, mean_g = 0, mean_gh = 0;
    if (c.centered) {
      for (int64_t i = 0; i < c.cols; ++i) mean += x[i] / c.cols;
    }
    for (int64_t i = 0; i < c.cols; ++i) {
      square += (x[i] - mean) * (x[i] - mean) / c.cols;
    }
    const double rstd = 1 / std::sqrt(square + c.eps);
    for (int64_t i = 0; i < c.cols; ++i) {
      const double h = (x[i] - mean) * rstd;
      c.y[r * c.cols + i] = h * c.weight[i] + (c.centered ? c.bias[i] : 0);
      c.grad_weight[i] += dy[i] * h;
      c.grad_bias[i] += dy[i];
      if (c.centered) mean_g += dy[i] * c.weight[i] / c.cols;
      mean_gh += dy[i] * c.weight[i] * h / c.cols;
    }
    for (int64_t i = 0; i < c.cols; ++i) {
      const double h = (x[i] - mean) * rstd;
      c.grad_x[r * c.cols + i] =
          rstd * (dy[i] * c.weight[i] - mean_g - h * mean_gh);
    }
    c.mean[r] = mean;
    c.rstd[r] = rstd;
  }
}

Case MakeCase(DType dtype, int64_t rows, int64_t cols, bool centered) {
  Case c{.rows = rows, .cols = cols, .centered = centered};
  // Short rows can be nearly constant, and then eps keeps the problem sane.
  if (cols < 16) c.eps = 0.5;
  c.x = RoundedTo(dtype, RandomValues(rows * cols, 1, -2, 3));
  c.grad_y = RoundedTo(dtype, RandomValues(rows * cols, 2));
  c.weight = RoundedTo(dtype, RandomValues(cols, 3, 0.5, 1.5));
  c.bias = RoundedTo(dtype, RandomValues(cols, 4));
  Solve(c);
  return c;
}

// Tensors of a case; rows of x are `gap` further apart than they need be.
struct Tensors {
  Tensors(const Case& c, DType dtype, int64_t gap, int64_t offset)
      : x(dtype, {c.rows, c.cols}, {c.cols + gap, 1}, offset),
        weight(HostTensor::Of(dtype, c.weight, {c.cols}, offset)),
        bias(HostTensor::Of(dtype, c.bias, {c.cols}, offset)),
        y(dtype, {c.rows, c.cols}, offset),
        mean(AccumulateDType(dtype), {c.rows}),
        rstd(AccumulateDType(dtype), {c.rows}),
        grad_y(HostTensor::Of(dtype, c.grad_y, {c.rows, c.cols}, offset)),
        grad_x(dtype, {c.rows, c.cols}, offset),
        grad_weight(AccumulateDType(dtype), {c.cols}),
        grad_bias(AccumulateDType(dtype), {c.cols}) {
    x.Set(c.x);
  }
  HostTensor x, weight, bias, y, mean, rstd, grad_y, grad_x, grad_weight,
      grad_bias;

  void Forward(const Case& c, int threads) {
    if (c.centered) {
      EXPECT_OK(cpu::LayerNorm({x.view(), weight.view(), bias.view(), y.view(),
                                mean.view(), rstd.view(), c.eps},
                               TestLaunch(threads)));
    } else {
      EXPECT_OK(
          cpu::RmsNorm({x.view(), weight.view(), y.view(), rstd.view(), c.eps},
                       TestLaunch(threads)));
    }
  }
  void Backward(const Case& c, bool accumulate, int threads) {
    if (c.centered) {
      EXPECT_OK(cpu::LayerNormBackward(
          {x.view(), weight.view(), mean.view(), rstd.view(), grad_y.view(),
           grad_x.view(), grad_weight.view(), grad_bias.view(), accumulate,
           accumulate},
          TestLaunch(threads)));
    } else {
      EXPECT_OK(cpu::RmsNormBackward(
          {x.view(), weight.view(), rstd.view(), grad_y.view(), grad_x.view(),
           grad_weight.view(), accumulate},
          TestLaunch(threads)));
    }
  }
};

void ForEachCase(const std::function<void(const Case&, DType)>& f) {
  for (DType dtype : kFloats) {
    for (int64_t rows : {0, 1, 7, 33, 300}) {
      for (int64_t cols : {1, 3, 16, 33, 100}) {
        for (bool centered : {true, false}) {
          SCOPED_TRACE(::testing::Message()
                       << DTypeName(dtype) << " " << rows << " x " << cols
                       << (centered ? " layer" : " rms"));
          f(MakeCase(dtype, rows, cols, centered), dtype);
        }
      }
    }
  }
}

class NormTest : public VectorWidthsTest {};
INSTANTIATE_TEST_SUITE_P(Avx2Only, NormTest, ::testing::Bool());

TEST_P(NormTest, EqualsReference) {
  ForEachCase([](const Case& c, DType dtype) {
    Tensors t(c, dtype, 5, 1);
    t.Forward(c, 2);
    const DType statistics = AccumulateDType(dtype);
    EXPECT_TRUE(AllCloseAs(dtype, t.y.Get(), c.y, c.cols));
    EXPECT_TRUE(AllCloseAs(statistics, t.rstd.Get(), c.rstd, c.cols));
    if (c.centered) {
      EXPECT_TRUE(AllCloseAs(statistics, t.mean.Get(), c.mean, c.cols));
    }
    EXPECT_TRUE(t.y.GuardsIntact() && t.rstd.GuardsIntact());
  });
}

TEST_P(NormTest, GradientsEqualReference) {
  ForEachCase([](const Case& c, DType dtype) {
    Tensors t(c, dtype, 2, 3);
    t.Forward(c, 1);
    t.Backward(c, false, 2);
    const DType sums = AccumulateDType(dtype);
    EXPECT_TRUE(AllCloseAs(dtype, t.grad_x.Get(), c.grad_x, 64 * c.cols));
    EXPECT_TRUE(
        AllCloseAs(sums, t.grad_weight.Get(), c.grad_weight, 64 + c.rows));
    if (c.centered) {
      EXPECT_TRUE(AllCloseAs(sums, t.grad_bias.Get(), c.grad_bias, c.rows));
    }
    EXPECT_TRUE(t.grad_x.GuardsIntact() && t.grad_weight.GuardsIntact());
  });
}

TEST_P(NormTest, GradientsAreAddedToWhatIsThere) {
  for (bool centered : {true, false}) {
    const Case c = MakeCase(DType::kFloat32, 33, 17, centered);
    Tensors t(c, DType::kFloat32, 0, 0);
    t.Forward(c, 1);
    t.grad_weight.Set(Values(c.cols, 2.0));
    t.grad_bias.Set(Values(c.cols, -1.0));
    t.Backward(c, true, 1);
    Values weight = c.grad_weight, bias = c.grad_bias;
    for (double& v : weight) v += 2;
    for (double& v : bias) v -= 1;
    EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.grad_weight.Get(), weight, 100));
    if (centered) {
      EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.grad_bias.Get(), bias, 100));
    }
  }
}

TEST_P(NormTest, WithoutRowsGradientsAreZeroOrUntouched) {
  const Case c = MakeCase(DType::kFloat32, 0, 5, true);
  Tensors t(c, DType::kFloat32, 0, 0);
  t.grad_weight.Set(Values(5, 3.0));
  t.Backward(c, true, 1);
  EXPECT_EQ(t.grad_weight.Get(), Values(5, 3.0));
  t.Backward(c, false, 1);
  EXPECT_EQ(t.grad_weight.Get(), Values(5, 0.0));
}

TEST_P(NormTest, BitsDoNotDependOnThreadsOrOffset) {
  for (bool centered : {true, false}) {
    const Case c = MakeCase(DType::kFloat32, 77, 51, centered);
    Tensors first(c, DType::kFloat32, 0, 0);
    first.Forward(c, 1);
    first.Backward(c, false, 1);
    for (int64_t offset = 1; offset <= 33; ++offset) {
      Tensors t(c, DType::kFloat32, offset, offset);
      t.Forward(c, 1 + offset % 3);
      t.Backward(c, false, 1 + offset % 3);
      EXPECT_EQ(t.y.Bytes(), first.y.Bytes());
      EXPECT_EQ(t.grad_x.Bytes(), first.grad_x.Bytes());
      EXPECT_EQ(t.grad_weight.Bytes(), first.grad_weight.Bytes());
    }
  }
}

TEST_P(NormTest, FloatParametersWithLowPrecisionRows) {
  const Case c = MakeCase(DType::kBFloat16, 7, 33, true);
  Tensors t(c, DType::kBFloat16, 0, 0);
  t.weight = HostTensor::Of(DType::kFloat32, c.weight, {c.cols});
  t.Forward(c, 1);
  EXPECT_TRUE(AllCloseAs(DType::kBFloat16, t.y.Get(), c.y, c.cols));
}

}  // namespace
}  // namespace tessera
