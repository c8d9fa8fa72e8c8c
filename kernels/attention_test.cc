#include "kernels/attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

struct Case {
  int64_t batch = 2, queries = 33, keys = 33, heads = 2, key_heads = 2, dim = 8;
  DType dtype = DType::kFloat32;
  AttentionMask mask = {};
  int64_t pad = 0;  // Elements between positions, as in a fused projection.
  int num_threads = 1;

  std::string ToString() const {
    std::string text = DTypeName(dtype);
    for (int64_t n : {batch, queries, keys, heads, key_heads, dim,
                      mask.sliding_window, int64_t{mask.causal}, pad}) {
      text += " " + std::to_string(n);
    }
    return text;
  }
};

HostTensor Positions(const Case& t, int64_t length, int64_t heads,
                     uint64_t seed) {
  const int64_t step = heads * t.dim + t.pad;
  HostTensor x(t.dtype, {t.batch, length, heads, t.dim},
               {length * step, step, t.dim, 1}, t.pad);
  x.Set(RandomValues(x.view().num_elements(), seed, -2, 2));
  return x;
}

struct Operands {
  explicit Operands(const Case& t)
      : q(Positions(t, t.queries, t.heads, 1)),
        k(Positions(t, t.keys, t.key_heads, 2)),
        v(Positions(t, t.keys, t.key_heads, 3)),
        out(Positions(t, t.queries, t.heads, 4)),
        grad_out(Positions(t, t.queries, t.heads, 5)),
        grad_q(Positions(t, t.queries, t.heads, 6)),
        grad_k(Positions(t, t.keys, t.key_heads, 7)),
        grad_v(Positions(t, t.keys, t.key_heads, 8)),
        logsumexp(AccumulateDType(t.dtype), {t.batch, t.heads, t.queries}) {}

  AttentionArgs Forward(const Case& t) const {
    return {q.view(),   k.view(),         v.view(),
            out.view(), logsumexp.view(), 1 / std::sqrt(t.dim),
            t.mask};
  }
  AttentionBackwardArgs Backward(const Case& t) const {
    return {Forward(t), grad_out.view(), grad_q.view(), grad_k.view(),
            grad_v.view()};
  }
  HostTensor q, k, v, out, grad_out, grad_q, grad_k, grad_v, logsumexp;
};

// Everything, in double and with all scores stored.
class Reference {
 public:
  Reference(const Case& t, const Operands& operands)
      : t_(t),
        scale_(1 / std::sqrt(t.dim)),
        q_(operands.q.Get()),
        k_(operands.k.Get()),
        v_(operands.v.Get()),
        grad_out_(operands.grad_out.Get()),
        out(q_.size()),
        grad_q(q_.size()),
        grad_k(k_.size()),
        grad_v(k_.size()) {
    for (int64_t b = 0; b < t.batch; ++b) {
      for (int64_t h = 0; h < t.heads; ++h) {
        for (int64_t i = 0; i < t.queries; ++i) Query(b, h, i);
      }
    }
  }

 private:
  bool Sees(int64_t i, int64_t j) const {
    const int64_t position = i + t_.keys - t_.queries;
    if (t_.mask.causal && j > position) return false;
    return t_.mask.sliding_window == 0 || position - j < t_.mask.sliding_window;
  }
  double Dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < t_.dim; ++d) sum += a[d] * b[d];
    return sum;
  }
  int64_t KeyAt(int64_t b, int64_t j, int64_t h) const {
    const int64_t g = h / (t_.heads / t_.key_heads);
    return ((b * t_.keys + j) * t_.key_heads + g) * t_.dim;
  }
  void Query(int64_t b, int64_t h, int64_t i) {
    const int64_t at = ((b * t_.queries + i) * t_.heads + h) * t_.dim;
    std::vector<double> weights(t_.keys);
    double total = 0;
    for (int64_t j = 0; j < t_.keys; ++j) {
      if (!Sees(i, j)) continue;
      weights[j] = std::exp(scale_ * Dot(&q_[at], &k_[KeyAt(b, j, h)]));
      total += weights[j];
    }
    double dot = 0;  // Of weights and their gradients.
    for (int64_t j = 0; j < t_.keys && total > 0; ++j) {
      weights[j] /= total;
      const int64_t key = KeyAt(b, j, h);
      for (int64_t d = 0; d < t_.dim; ++d) {
        out[at + d] += weights[j] * v_[key + d];
        grad_v[key + d] += weights[j] * grad_out_[at + d];
      }
      dot += weights[j] * Dot(&grad_out_[at], &v_[key]);
    }
    for (int64_t j = 0; j < t_.keys; ++j) {
      const int64_t key = KeyAt(b, j, h);
      const double grad_score =
          weights[j] * (Dot(&grad_out_[at], &v_[key]) - dot) * scale_;
      for (int64_t d = 0; d < t_.dim; ++d) {
        grad_q[at + d] += grad_score * k_[key + d];
        grad_k[key + d] += grad_score * q_[at + d];
      }
    }
  }

  const Case& t_;
  const double scale_;
  const std::vector<double> q_, k_, v_, grad_out_;

 public:
  std::vector<double> out, grad_q, grad_k, grad_v;
};

// AllClose, relative to 1 where all that is expected is smaller.
::testing::AssertionResult CloseOrOfSize1(const HostTensor& actual,
                                          std::vector<double> expected,
                                          double tolerance) {
  std::vector<double> values = actual.Get();
  values.push_back(1);
  expected.push_back(1);
  return AllClose(values, expected, tolerance);
}

void ExpectAttention(const Case& t) {
  SCOPED_TRACE(t.ToString());
  Operands operands(t);
  const Reference expected(t, operands);
  const Launch launch = TestLaunch(t.num_threads);
  ASSERT_OK(kAttention(operands.Forward(t), launch));
  ASSERT_OK(kAttentionBackward(operands.Backward(t), launch));
  const int64_t n = t.keys + t.dim;
  EXPECT_TRUE(AllCloseAs(t.dtype, operands.out.Get(), expected.out, n));
  // Gradients of scores are differences of terms of about 1, and `out`, which
  // they are made from, was rounded.
  const double tolerance = 4 * Tolerance(t.dtype, n);
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_q, expected.grad_q, tolerance));
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_k, expected.grad_k, tolerance));
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_v, expected.grad_v, tolerance));
  for (const HostTensor* x : {&operands.out, &operands.grad_q, &operands.grad_k,
                              &operands.grad_v, &operands.logsumexp}) {
    EXPECT_TRUE(t.pad > 0 || x->GuardsIntact());
  }
}

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                             DType::kFloat16};

// Both widths of vectors.
class AttentionTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) hwy::SetSupportedTargetsForTest(HWY_AVX2);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(AttentionTest, EqualsLoopsAtOddLengths) {
  for (DType dtype : kFloats) {
    for (int64_t length : {1, 7, 33, 64, 65, 130}) {
      for (bool causal : {true, false}) {
        Case t{.queries = length, .keys = length, .dtype = dtype};
        t.mask.causal = causal;
        ExpectAttention(t);
      }
    }
  }
}

TEST_P(AttentionTest, EqualsLoopsAtEveryHeadDimension) {
  for (DType dtype : kFloats) {
    for (int64_t dim : {1, 5, 16, 40, 64, 80, 128}) {
      ExpectAttention({.queries = 70, .keys = 70, .dim = dim, .dtype = dtype});
    }
  }
}

TEST_P(AttentionTest, HeadsOfKeysAreShared) {
  for (DType dtype : kFloats) {
    for (int64_t key_heads : {1, 2, 3, 6}) {
      ExpectAttention({.queries = 40,
                       .keys = 40,
                       .heads = 6,
                       .key_heads = key_heads,
                       .dim = 16,
                       .dtype = dtype,
                       .num_threads = 3});
    }
  }
}

TEST_P(AttentionTest, QueriesAreTheLastPositions) {
  for (DType dtype : kFloats) {
    for (int64_t queries : {1, 5, 64, 70}) {
      for (int64_t keys : {70, 100, 193}) {
        ExpectAttention({.queries = queries, .keys = keys, .dtype = dtype});
      }
    }
  }
}

// The first queries see nothing, and get 0.
TEST_P(AttentionTest, MoreQueriesThanKeys) {
  for (DType dtype : kFloats) {
    ExpectAttention({.queries = 90, .keys = 20, .dtype = dtype});
    ExpectAttention({.queries = 9, .keys = 1, .dtype = dtype});
  }
  Case t{.queries = 3, .keys = 0};
  Operands operands(t);
  ASSERT_OK(kAttention(operands.Forward(t), TestLaunch()));
  EXPECT_EQ(operands.out.Get(), std::vector<double>(2 * 3 * 2 * 8));
}

TEST_P(AttentionTest, WindowsSlide) {
  for (DType dtype : kFloats) {
    for (int64_t window : {1, 3, 16, 64, 500}) {
      Case t{.queries = 100, .keys = 100, .dtype = dtype};
      t.mask.sliding_window = window;
      ExpectAttention(t);
      t.queries = 20;
      ExpectAttention(t);
    }
  }
}

TEST_P(AttentionTest, ReadsPartsOfAFusedProjection) {
  for (DType dtype : kFloats) {
    for (int64_t dim : {8, 64}) {
      ExpectAttention(
          {.queries = 66, .keys = 66, .dim = dim, .dtype = dtype, .pad = 33});
    }
  }
}

TEST_P(AttentionTest, NoQueriesGiveZeroGradients) {
  Case t{.queries = 0, .keys = 5};
  Operands operands(t);
  ASSERT_OK(kAttention(operands.Forward(t), TestLaunch()));
  ASSERT_OK(kAttentionBackward(operands.Backward(t), TestLaunch()));
  EXPECT_EQ(operands.grad_k.Get(), std::vector<double>(2 * 5 * 2 * 8));
  EXPECT_EQ(operands.grad_v.Get(), std::vector<double>(2 * 5 * 2 * 8));
}

TEST_P(AttentionTest, ThreadsDoNotChangeBits) {
  Case t{.queries = 100, .keys = 130, .heads = 4, .dim = 24};
  Operands one(t), many(t);
  ASSERT_OK(kAttention(one.Forward(t), TestLaunch(1)));
  ASSERT_OK(kAttentionBackward(one.Backward(t), TestLaunch(1)));
  for (int num_threads : {2, 3, 7}) {
    ASSERT_OK(kAttention(many.Forward(t), TestLaunch(num_threads)));
    ASSERT_OK(kAttentionBackward(many.Backward(t), TestLaunch(num_threads)));
    EXPECT_EQ(one.out.Bytes(), many.out.Bytes());
    EXPECT_EQ(one.grad_q.Bytes(), many.grad_q.Bytes());
    EXPECT_EQ(one.grad_k.Bytes(), many.grad_k.Bytes());
    EXPECT_EQ(one.grad_v.Bytes(), many.grad_v.Bytes());
  }
}

// exp(score) of these would overflow.
TEST_P(AttentionTest, LargeScores) {
  Case t{.queries = 80, .keys = 80, .dtype = DType::kFloat64};
  Operands operands(t);
  std::vector<double> q = operands.q.Get();
  for (double& x : q) x *= 40;
  operands.q.Set(q);
  const Reference expected(t, operands);
  ASSERT_OK(kAttention(operands.Forward(t), TestLaunch()));
  EXPECT_TRUE(AllCloseAs(t.dtype, operands.out.Get(), expected.out, 10000));
}

TEST_P(AttentionTest, NotANumberIsNotLost) {
  for (int which : {0, 1, 2}) {
    Case t{.batch = 1, .queries = 70, .keys = 70, .heads = 1, .key_heads = 1};
    Operands operands(t);
    HostTensor& x = which == 0   ? operands.q
                    : which == 1 ? operands.k
                                 : operands.v;
    std::vector<double> values = x.Get();
    values[40 * 8 + 3] = std::numeric_limits<double>::quiet_NaN();
    x.Set(values);
    ASSERT_OK(kAttention(operands.Forward(t), TestLaunch()));
    const std::vector<double> out = operands.out.Get();
    EXPECT_TRUE(std::isfinite(out[39 * 8])) << which;
    EXPECT_TRUE(std::isnan(out[40 * 8 + 3])) << which;
    EXPECT_EQ(std::isnan(out[41 * 8 + 3]), which != 0) << which;
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, AttentionTest, ::testing::Bool());

TEST(AttentionErrorTest, SaysWhatDoesNotFit) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Case t{.heads = 4, .key_heads = 3};
  EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
              StatusIs(kInvalid, "multiple of those of k"));
  t = {};
  t.mask = {.causal = false, .sliding_window = 4};
  EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
              StatusIs(kInvalid, "sliding window"));
  t = {};
  const Operands operands(t);
  AttentionArgs args = operands.Forward(t);
  args.k.dtype = DType::kBFloat16;
  EXPECT_THAT(kAttention(args, TestLaunch()),
              StatusIs(kInvalid, "one floating type"));
  args = operands.Forward(t);
  args.v.strides[3] = 2;
  EXPECT_THAT(kAttention(args, TestLaunch()), StatusIs(kInvalid, "stride 1"));
}

}  // namespace
}  // namespace tessera
