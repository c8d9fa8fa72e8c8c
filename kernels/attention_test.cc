#include "kernels/attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/testing/attention_reference.h"
#include "tests/testing/instruction_sets.h"

namespace tessera {
namespace {

using Case = AttentionCase;
using Operands = AttentionOperands;
using Reference = AttentionReference;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                             DType::kFloat16};

class AttentionTest : public VectorWidthsTest {};

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

// Where each query's document begins, of documents of these lengths.
std::vector<int64_t> StartsOf(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts;
  for (int64_t length : lengths) {
    starts.insert(starts.end(), length, static_cast<int64_t>(starts.size()));
  }
  return starts;
}

TEST_P(AttentionTest, DocumentsOfARowSeeThemselvesAlone) {
  for (DType dtype : kFloats) {
    for (int64_t window : {0, 1, 16, 70}) {
      Case t{.queries = 200,
             .keys = 200,
             .heads = 4,
             .dtype = dtype,
             .num_threads = 3,
             .segment_starts = {StartsOf({1, 63, 2, 100, 34}),
                                StartsOf({129, 1, 1, 1, 68})}};
      t.mask.sliding_window = window;
      ExpectAttention(t);
    }
    // One segment hides nothing; starts past a query hide all.
    ExpectAttention(
        {.dtype = dtype,
         .segment_starts = {StartsOf({33}), std::vector<int64_t>(33, 20)}});
    // Queries that are the last of 70 positions.
    ExpectAttention({.batch = 1,
                     .queries = 5,
                     .keys = 70,
                     .dtype = dtype,
                     .segment_starts = {{3, 3, 66, 68, 68}}});
  }
}

// Other values in one document change no bit of another.
TEST_P(AttentionTest, DocumentsDoNotMeet) {
  Case t{.batch = 1, .queries = 70, .keys = 70, .heads = 1, .key_heads = 1};
  t.segment_starts = {StartsOf({41, 29})};
  Operands before(t), after(t);
  for (HostTensor* x : {&after.q, &after.k, &after.v, &after.grad_out}) {
    std::vector<double> values = x->Get();
    for (size_t i = 0; i < 41 * 8; ++i) values[i] *= -30;
    x->Set(values);
  }
  for (const Operands* operands : {&before, &after}) {
    ASSERT_OK(kAttention(operands->Forward(t), TestLaunch()));
    ASSERT_OK(kAttentionBackward(operands->Backward(t), TestLaunch()));
  }
  for (const auto x : {&Operands::out, &Operands::grad_q, &Operands::grad_k,
                       &Operands::grad_v}) {
    const std::vector<double> a = (before.*x).Get(), b = (after.*x).Get();
    EXPECT_NE(a[40 * 8], b[40 * 8]);
    for (size_t i = 41 * 8; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << i;
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

// Softmax does not see what is added to all scores of a query, so what equal
// queries give to the keys adds up to zero. Plain rounding leaves 7e-8 (33
// keys) to 3e-7 (2 keys) of the gradients' size, and 3e-8 where the rest is
// spread.
TEST_P(AttentionTest, GradientsOfKeysAddUpToZero) {
  for (int64_t keys : {2, 7, 33}) {
    const Case t{.batch = 16, .queries = keys, .keys = keys, .dim = 16};
    Operands operands(t);
    operands.q.Set(std::vector<double>(operands.q.Get().size(), 0.5));
    std::vector<double> k = operands.k.Get();
    for (double& x : k) x *= 3;
    operands.k.Set(k);
    ASSERT_OK(kAttention(operands.Forward(t), TestLaunch()));
    ASSERT_OK(kAttentionBackward(operands.Backward(t), TestLaunch()));
    const std::vector<double> grads = operands.grad_k.Get();
    const size_t row = static_cast<size_t>(t.key_heads * t.dim);
    const size_t sample = static_cast<size_t>(keys) * row;
    double sums = 0, size = 0;
    for (size_t first = 0; first < grads.size(); first += sample) {
      for (size_t column = 0; column < row; ++column) {
        double sum = 0;
        for (size_t i = column; i < sample; i += row) {
          sum += grads[first + i];
          size += std::abs(grads[first + i]);
        }
        sums += std::abs(sum);
      }
    }
    EXPECT_LE(sums, 5e-8 * size) << keys << " keys";
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
  t = {.batch = 1, .queries = 3, .keys = 3, .segment_starts = {{0, 2, 1}}};
  EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
              StatusIs(kInvalid, "in row 0 1 at query 2 is below"));
  t.segment_starts = {{0, 1, 1}};
  t.mask.causal = false;
  EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
              StatusIs(kInvalid, "segment_starts [B, T], with a causal mask"));
}

}  // namespace
}  // namespace tessera
