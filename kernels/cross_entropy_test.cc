// Cross entropy and its gradient against a double-precision reference.
#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>
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
constexpr double kIgnored = -100;

struct Case {
  int64_t rows, cols;
  double scale = 0.25, grad_loss = 3;
  Values logits = {}, targets = {};
  double loss = 0;
  Values logsumexp = {}, grad = {};
};

void Solve(Case& c) {
  c.logsumexp.assign(c.rows, 0);
  c.grad.assign(c.rows * c.cols, 0);
  c.loss = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    if (c.targets[r] == kIgnored) continue;
    const double* x = &c.logits[r * c.cols];
    double largest = x[0], sum = 0;
    for (int64_t i = 0; i < c.cols; ++i) largest = std::max(largest, x[i]);
    for (int64_t i = 0; i < c.cols; ++i) sum += std::exp(x[i] - largest);
    const auto target = static_cast<int64_t>(c.targets[r]);
    c.logsumexp[r] = largest + std::log(sum);
    c.loss += c.scale * (c.logsumexp[r] - x[target]);
    for (int64_t i = 0; i < c.cols; ++i) {
      c.grad[r * c.cols + i] =
          c.grad_loss * c.scale *
          (std::exp(x[i] - c.logsumexp[r]) - (i == target ? 1 : 0));
    }
  }
}

Case MakeCase(DType dtype, int64_t rows, int64_t cols, double spread = 5) {
  Case c{.rows = rows, .cols = cols};
  c.logits = RoundedTo(dtype, RandomValues(rows * cols, 1, -spread, spread));
  c.targets = RandomIntegers(rows, 2, 0, cols - 1);
  for (int64_t r = 0; r < rows; r += 5) {
    if (r > 0) c.targets[r] = kIgnored;
  }
  Solve(c);
  return c;
}

// Tensors of a case, rows `gap` further apart than they need be.
struct Tensors {
  Tensors(const Case& c, DType dtype, int64_t gap, int64_t offset)
      : logits(dtype, {c.rows, c.cols}, {c.cols + gap, 1}, offset),
        targets(HostTensor::Of(DType::kInt64, c.targets, {c.rows})),
        logsumexp(AccumulateDType(dtype), {c.rows}),
        loss(AccumulateDType(dtype), {}),
        grad_loss(HostTensor::Of(AccumulateDType(dtype), {c.grad_loss}, {})),
        grad(dtype, {c.rows, c.cols}, offset) {
    logits.Set(c.logits);
  }
  HostTensor logits, targets, logsumexp, loss, grad_loss, grad;
  TensorView counted = {};

  absl::Status Forward(const Case& c, int threads, bool accumulate = false) {
    return cpu::CrossEntropy({logits.view(), targets.view(), logsumexp.view(),
                              loss.view(), counted, -100, c.scale, accumulate},
                             TestLaunch(threads));
  }
  absl::Status Backward(const Case& c, const TensorView& to, int threads) {
    return cpu::CrossEntropyBackward(
        {logits.view(), targets.view(), logsumexp.view(), grad_loss.view(), to,
         counted, -100, c.scale},
        TestLaunch(threads));
  }
};

class CrossEntropyTest : public VectorWidthsTest {};
INSTANTIATE_TEST_SUITE_P(Avx2Only, CrossEntropyTest, ::testing::Bool());

TEST_P(CrossEntropyTest, EqualsReference) {
  for (DType dtype : kFloats) {
    for (int64_t rows : {0, 1, 7, 33}) {
      for (int64_t cols : {1, 7, 33, 5003}) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(dtype) << " " << rows << " x " << cols);
        const Case c = MakeCase(dtype, rows, cols);
        const DType sums = AccumulateDType(dtype);
        Tensors t(c, dtype, 3, 1);
        EXPECT_OK(t.Forward(c, 2));
        if (cols > 1) {
          EXPECT_TRUE(AllCloseAs(sums, t.loss.Get(), {c.loss}, cols));
        } else {
          EXPECT_EQ(t.loss.Get()[0], 0.0);
        }
        EXPECT_TRUE(AllCloseAs(sums, t.logsumexp.Get(), c.logsumexp, cols));
        EXPECT_OK(t.Backward(c, t.grad.view(), 2));
        if (cols > 1) {
          EXPECT_TRUE(AllCloseAs(dtype, t.grad.Get(), c.grad, cols));
        }
        EXPECT_TRUE(t.grad.GuardsIntact() && t.logsumexp.GuardsIntact());
      }
    }
  }
}

TEST_P(CrossEntropyTest, GradientInPlace) {
  for (DType dtype : kFloats) {
    const Case c = MakeCase(dtype, 7, 5003);
    Tensors t(c, dtype, 3, 1);
    EXPECT_OK(t.Forward(c, 1));
    EXPECT_OK(t.Backward(c, t.grad.view(), 1));
    EXPECT_OK(t.Backward(c, t.logits.view(), 1));
    EXPECT_EQ(t.logits.Bytes(), t.grad.Bytes());
  }
}

// The first half of each row of float32 logits becomes the gradient.
TEST_P(CrossEntropyTest, SmallerGradientInPlace) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int64_t cols : {1, 33, 5003}) {
      const Case c = MakeCase(DType::kFloat32, 7, cols);
      Tensors t(c, DType::kFloat32, 0, 0);
      EXPECT_OK(t.Forward(c, 1));
      HostTensor apart(dtype, {c.rows, c.cols});
      EXPECT_OK(t.Backward(c, apart.view(), 1));
      if (cols > 1) {
        EXPECT_TRUE(AllCloseAs(dtype, apart.Get(), c.grad, cols));
      }
      TensorView halves = t.logits.view();
      halves.dtype = dtype;
      halves.strides[0] *= 2;
      EXPECT_OK(t.Backward(c, halves, 1));
      for (int64_t i = 0; i < c.rows * c.cols; ++i) {
        ASSERT_EQ(halves.as<uint16_t>()[i / cols * 2 * cols + i % cols],
                  apart.view().as<uint16_t>()[i]);
      }
    }
  }
}

TEST_P(CrossEntropyTest, LossIsAddedToWhatIsThere) {
  const Case c = MakeCase(DType::kFloat32, 33, 7);
  Tensors t(c, DType::kFloat32, 0, 0);
  t.loss.Set({10});
  EXPECT_OK(t.Forward(c, 1, true));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.loss.Get(), {10 + c.loss}, 7));
}

// Of all targets, also where the rows at hand are a part of them.
TEST_P(CrossEntropyTest, ScaleIsDividedByTheCount) {
  Case c = MakeCase(DType::kFloat32, 33, 7);
  const HostTensor counted =
      HostTensor::Of(DType::kInt64, {1, -100, 2, 3, -100, 0}, {6});
  c.scale /= 4;
  Solve(c);
  Tensors t(c, DType::kFloat32, 0, 0);
  c.scale *= 4;
  t.counted = counted.view();
  EXPECT_OK(t.Forward(c, 1));
  EXPECT_OK(t.Backward(c, t.grad.view(), 1));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.loss.Get(), {c.loss}, 7));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.grad.Get(), c.grad, 7));
}

TEST_P(CrossEntropyTest, MeanOverNothingIsZero) {
  Case c = MakeCase(DType::kFloat32, 3, 7);
  c.targets = {kIgnored, kIgnored, kIgnored};
  Tensors t(c, DType::kFloat32, 0, 0);
  t.counted = t.targets.view();
  EXPECT_OK(t.Forward(c, 1));
  EXPECT_OK(t.Backward(c, t.grad.view(), 1));
  EXPECT_EQ(t.loss.Get(), Values{0});
  EXPECT_EQ(t.grad.Get(), Values(21, 0.0));
}

TEST_P(CrossEntropyTest, HugeLogitsDoNotOverflow) {
  Case c = MakeCase(DType::kFloat32, 7, 5003, 30000);
  Tensors t(c, DType::kFloat32, 0, 0);
  EXPECT_OK(t.Forward(c, 1));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.loss.Get(), {c.loss}, 5003));
  EXPECT_OK(t.Backward(c, t.grad.view(), 1));
  // A logit of 30000 has steps of 2e-3, and so has its distance to the sum.
  EXPECT_TRUE(AllClose(t.grad.Get(), c.grad, 5e-3));
}

// CASE: masked logits are -inf and get no gradient; NaN is not hidden.
TEST_P(CrossEntropyTest, InfiniteAndNaNLogits) {
  Case c = MakeCase(DType::kFloat32, 3, 2100);
  for (int64_t i = 0; i < 2060; ++i) c.logits[i] = -INFINITY;
  c.targets = {2070, 5, 6};
  Solve(c);
  Tensors t(c, DType::kFloat32, 0, 0);
  EXPECT_OK(t.Forward(c, 1));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.loss.Get(), {c.loss}, 2100));
  EXPECT_OK(t.Backward(c, t.grad.view(), 1));
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, t.grad.Get(), c.grad, 2100));

  c.logits[2100 + 77] = std::numeric_limits<double>::quiet_NaN();
  t.logits.Set(c.logits);
  EXPECT_OK(t.Forward(c, 1));
  EXPECT_TRUE(std::isnan(t.loss.Get()[0]));
}

TEST_P(CrossEntropyTest, BitsDoNotDependOnThreadsOrOffset) {
  const Case c = MakeCase(DType::kFloat32, 33, 2500);
  Tensors first(c, DType::kFloat32, 0, 0);
  EXPECT_OK(first.Forward(c, 1));
  EXPECT_OK(first.Backward(c, first.grad.view(), 1));
  for (int64_t offset = 1; offset <= 33; ++offset) {
    Tensors t(c, DType::kFloat32, offset, offset);
    EXPECT_OK(t.Forward(c, 1 + offset % 4));
    EXPECT_OK(t.Backward(c, t.grad.view(), 1 + offset % 4));
    EXPECT_EQ(t.loss.Bytes(), first.loss.Bytes());
    EXPECT_EQ(t.grad.Bytes(), first.grad.Bytes());
  }
}

TEST_P(CrossEntropyTest, TargetOutOfRangeIsNamed) {
  Case c = MakeCase(DType::kFloat32, 7, 5);
  c.targets[3] = 5;
  Tensors t(c, DType::kFloat32, 0, 0);
  EXPECT_THAT(t.Forward(c, 1),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "target 5 at position 3 of 7 is neither below the "
                       "vocabulary size 5 nor the ignored -100"));
}

}  // namespace
}  // namespace tessera
