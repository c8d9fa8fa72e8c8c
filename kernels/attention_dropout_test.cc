// Dropout inside attention: which weights it drops, for whom masks are equal,
// how many they are, and the same mathematics as plain loops with that mask.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/testing/attention_reference.h"
#include "tests/testing/instruction_sets.h"

namespace tessera {
namespace {

using Case = AttentionCase;
using Operands = AttentionOperands;

constexpr DropoutKey kKey = {{42, 7}, 3, 2};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                             DType::kFloat16};

// Both widths of vectors are also two sizes of tiles.
class AttentionDropoutTest : public VectorWidthsTest {};

// One query a row sees all keys alike, and value j is the unit vector j: what
// comes out are the factors of the weights, [B, T, H, S].
std::vector<double> Factors(Case t, int num_threads = 1) {
  t.dim = t.keys;
  t.key_heads = t.heads;
  t.mask.causal = false;
  Operands operands(t);
  operands.q.Set(std::vector<double>(operands.q.view().num_elements()));
  std::vector<double> units(operands.v.view().num_elements());
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t j = static_cast<int64_t>(i) / (t.heads * t.dim) % t.keys;
    units[i] = static_cast<int64_t>(i) % t.dim == j;
  }
  operands.v.Set(units);
  EXPECT_OK(kAttention(operands.Forward(t), TestLaunch(num_threads)));
  std::vector<double> factors = operands.out.Get();
  for (double& x : factors) x *= static_cast<double>(t.keys);
  return factors;
}

TEST_P(AttentionDropoutTest, WordsOfTheSamplesStreamDecide) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Case t{.batch = 2,
                 .queries = 71,
                 .keys = 67,
                 .heads = 3,
                 .dtype = dtype,
                 .dropout = {0.3, kKey}};
    const std::vector<double> factors = Factors(t);
    std::vector<double> expected;
    for (int64_t b = 0; b < t.batch; ++b) {
      for (int64_t i = 0; i < t.queries; ++i) {
        for (int64_t h = 0; h < t.heads; ++h) {
          const auto row = FactorsOf(t.dropout, b, h, i, t.keys);
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
    }
    EXPECT_TRUE(AllClose(factors, expected, 1e-5));
  }
}

TEST_P(AttentionDropoutTest, EqualsLoopsWithThatMask) {
  for (DType dtype : kFloats) {
    for (double probability : {0.1, 0.5, 0.9}) {
      const AttentionDropout dropout = {probability, kKey};
      for (int64_t length : {1, 7, 33, 64, 65, 130}) {
        ExpectAttention({.queries = length,
                         .keys = length,
                         .dtype = dtype,
                         .dropout = dropout});
      }
      Case t{.queries = 70, .keys = 100, .heads = 6, .key_heads = 2};
      t.dim = 24;
      t.dtype = dtype;
      t.dropout = dropout;
      t.num_threads = 3;
      ExpectAttention(t);
      t.mask.sliding_window = 9;
      ExpectAttention(t);
      t.mask = {.causal = false};
      ExpectAttention(t);
      // Queries that see nothing.
      t.mask = {};
      t.keys = 20;
      t.pad = 5;
      ExpectAttention(t);
    }
  }
}

TEST_P(AttentionDropoutTest, RateAndMeanAreAsAsked) {
  for (double p : {0.1, 0.5, 0.9}) {
    const Case t{.batch = 2,
                 .queries = 200,
                 .keys = 130,
                 .heads = 4,
                 .dropout = {p, kKey}};
    const std::vector<double> factors = Factors(t);
    const auto n = static_cast<double>(factors.size());
    double zeros = 0, mean = 0;
    for (double x : factors) {
      zeros += x == 0;
      mean += x / n;
    }
    EXPECT_NEAR(zeros / n, p, 5 * std::sqrt(p * (1 - p) / n));
    EXPECT_NEAR(mean, 1, 5 * std::sqrt(p / (1 - p) / n));
  }
}

// A longer text, more heads or a larger batch change no factor of what was
// there.
TEST_P(AttentionDropoutTest, OtherSizesDoNotMatter) {
  const AttentionDropout dropout = {0.5, kKey};
  const Case small{
      .batch = 1, .queries = 5, .keys = 7, .heads = 1, .dropout = dropout};
  const Case large{
      .batch = 3, .queries = 70, .keys = 90, .heads = 2, .dropout = dropout};
  const std::vector<double> some = Factors(small), all = Factors(large);
  for (int64_t i = 0; i < small.queries; ++i) {
    for (int64_t j = 0; j < small.keys; ++j) {
      EXPECT_NEAR(some[i * small.keys + j],
                  all[i * large.heads * large.keys + j], 1e-5);
    }
  }
}

TEST_P(AttentionDropoutTest, EveryPartOfTheKeyChangesTheMask) {
  Case t{.dropout = {0.5, kKey}};
  const std::vector<double> factors = Factors(t);
  EXPECT_EQ(Factors(t), factors);
  for (const DropoutKey& other :
       {DropoutKey{{43, 7}, 3, 2}, DropoutKey{{42, 8}, 3, 2},
        DropoutKey{{42, 7}, 4, 2}, DropoutKey{{42, 7}, 3, 1}}) {
    t.dropout.key = other;
    EXPECT_NE(Factors(t), factors);
  }
}

// Ranks that have samples r, r + 2, ... drop what one process drops.
TEST_P(AttentionDropoutTest, MasksFollowTheSampleNotTheRank) {
  const Case whole{.batch = 4, .dropout = {0.5, {{42, 7}, 0, 1}}};
  const std::vector<double> all = Factors(whole);
  const auto row = static_cast<int64_t>(all.size()) / whole.batch;
  for (int64_t rank : {0, 1}) {
    const Case part{.batch = 2, .dropout = {0.5, {{42, 7}, rank, 2}}};
    const std::vector<double> mine = Factors(part);
    for (int64_t b : {0, 1}) {
      const auto begin = mine.begin() + b * row;
      EXPECT_TRUE(
          std::equal(begin, begin + row, all.begin() + (2 * b + rank) * row));
    }
  }
}

TEST_P(AttentionDropoutTest, ThreadsDoNotChangeBits) {
  Case t{.queries = 100, .keys = 130, .heads = 4, .dim = 24};
  t.dropout = {0.25, kKey};
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

// A probability of 0 computes what no dropout computes, whatever the key.
TEST_P(AttentionDropoutTest, ProbabilityZeroIsNoDropout) {
  Case t{.queries = 100, .keys = 100};
  Operands without(t), with(t);
  ASSERT_OK(kAttention(without.Forward(t), TestLaunch()));
  ASSERT_OK(kAttentionBackward(without.Backward(t), TestLaunch()));
  t.dropout.key = kKey;
  ASSERT_OK(kAttention(with.Forward(t), TestLaunch()));
  ASSERT_OK(kAttentionBackward(with.Backward(t), TestLaunch()));
  EXPECT_EQ(without.out.Bytes(), with.out.Bytes());
  EXPECT_EQ(without.grad_q.Bytes(), with.grad_q.Bytes());
  EXPECT_EQ(without.grad_k.Bytes(), with.grad_k.Bytes());
  EXPECT_EQ(without.grad_v.Bytes(), with.grad_v.Bytes());
}

INSTANTIATE_TEST_SUITE_P(Vectors, AttentionDropoutTest, ::testing::Bool());

TEST(AttentionDropoutErrorTest, SaysWhatDoesNotFit) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (double probability : {-0.1, 1.0, std::nan("")}) {
    const Case t{.dropout = {probability, kKey}};
    EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
                StatusIs(kInvalid, "probability of dropout in [0, 1)"));
  }
  const Case t{.batch = 0,
               .heads = kMaxDropoutHeads + 1,
               .key_heads = 1,
               .dropout = {0.5, kKey}};
  EXPECT_THAT(kAttention(Operands(t).Forward(t), TestLaunch()),
              StatusIs(kInvalid, "fewer heads"));
}

}  // namespace
}  // namespace tessera
