#include "runtime/functions/attention.h"

#include "runtime/autograd/random_context.h"
#include "runtime/device/allocator.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using functions::Attention;
using functions::AttentionOptions;

DifferentiableFunction AttentionOf(const AttentionOptions& options) {
  return [options](const std::vector<Variable>& in) {
    return Attention(in[0], in[1], in[2], options);
  };
}

std::vector<Variable> Inputs(int64_t queries, int64_t keys, int64_t heads,
                             int64_t key_heads) {
  return {RandomLeaf({2, queries, heads, 3}, 1),
          RandomLeaf({2, keys, key_heads, 3}, 2),
          RandomLeaf({2, keys, key_heads, 3}, 3)};
}

TEST(AttentionFunctionTest, Gradients) {
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.causal = false},
        AttentionOptions{.sliding_window = 2},
        AttentionOptions{.scale = 0.7}}) {
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(5, 5, 4, 2)));
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(3, 7, 2, 2)));
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(1, 1, 1, 1)));
  }
}

TEST(AttentionFunctionTest, GradientsOfRowsOfDocuments) {
  AttentionOptions options;
  options.segment_starts = Tensor::FromVector(
      std::vector<int64_t>{0, 0, 2, 2, 2, 0, 1, 2, 3, 3}, {2, 5});
  EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(5, 5, 4, 2)));
  options.sliding_window = 2;
  EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(5, 5, 2, 2)));
  EXPECT_THROWS_ERROR(AttentionOf(options)(Inputs(4, 5, 2, 2)),
                      absl::StatusCode::kInvalidArgument,
                      "segment_starts [B, T]");
}

TEST(AttentionFunctionTest, GradientsWithDropout) {
  const RandomContextGuard guard({.seed = 3, .step = 4, .first_sample = 1});
  for (double probability : {0.1, 0.5}) {
    AttentionOptions options = {
        .dropout = functions::NextAttentionDropout(probability, "m")};
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(5, 5, 4, 2)));
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(70, 70, 1, 1)));
    options.causal = false;
    EXPECT_TRUE(GradCheck(AttentionOf(options), Inputs(3, 7, 2, 2)));
  }
}

// As Dropout: a place in training names the mask, and each call is one.
TEST(AttentionFunctionTest, DropoutFollowsThePlaceInTraining) {
  const std::vector<Variable> in = Inputs(9, 9, 2, 2);
  const auto out = [&](const RandomContext& context, const std::string& name,
                       int num_earlier_calls = 0) {
    const RandomContextGuard guard(context);
    for (int i = 0; i < num_earlier_calls; ++i) {
      functions::NextAttentionDropout(0.5, name);
    }
    return AttentionOf({.dropout = functions::NextAttentionDropout(0.5, name)})(
               in)
        .data()
        .ToDoubles();
  };
  const RandomContext here = {.seed = 1, .step = 2, .micro_batch = 3};
  const std::vector<double> expected = out(here, "m");
  EXPECT_EQ(out(here, "m"), expected);
  EXPECT_NE(out(here, "m", 1), expected);
  EXPECT_NE(out(here, "another"), expected);
  for (const RandomContext& other :
       {RandomContext{.seed = 9, .step = 2, .micro_batch = 3},
        RandomContext{.seed = 1, .step = 9, .micro_batch = 3},
        RandomContext{.seed = 1, .step = 2, .micro_batch = 9},
        RandomContext{
            .seed = 1, .step = 2, .micro_batch = 3, .first_sample = 4}}) {
    EXPECT_NE(out(other, "m"), expected);
  }
  // Nothing is drawn where nothing is dropped.
  const RandomContextGuard guard(here);
  EXPECT_EQ(functions::NextAttentionDropout(0, "m").probability, 0);
  EXPECT_TRUE(CurrentRandomContext().calls.empty());
}

// Masks are made block by block and never stored.
TEST(AttentionFunctionTest, DropoutTakesNoMemory) {
  constexpr int64_t kLength = 600;
  const auto peak_bytes = [](double probability) {
    const std::vector<Variable> in = Inputs(kLength, kLength, 1, 1);
    AllocatorOf(CurrentDevice()).ResetPeak();
    const Variable y = AttentionOf(
        {.dropout = functions::NextAttentionDropout(probability, "m")})(in);
    y.Backward(RandomLeaf(y.shape(), 9).data());
    return AllocatorOf(CurrentDevice()).stats().peak_bytes;
  };
  EXPECT_EQ(peak_bytes(0.5), peak_bytes(0));
}

// The first two queries see nothing.
TEST(AttentionFunctionTest, GradientsWhereQueriesSeeNothing) {
  EXPECT_TRUE(GradCheck(AttentionOf({}), Inputs(5, 3, 2, 1)));
}

TEST(AttentionFunctionTest, OneInputAlone) {
  for (int wanted : {0, 1, 2}) {
    std::vector<Variable> in = Inputs(4, 4, 2, 1);
    for (int v : {0, 1, 2}) in[v].set_requires_grad(v == wanted);
    EXPECT_TRUE(GradCheck(AttentionOf({}), in));
    for (int v : {0, 1, 2}) {
      EXPECT_EQ(in[v].grad().defined(), v == wanted);
    }
  }
}

// As a key-value cache does it: one query at a time sees all keys so far.
TEST(AttentionFunctionTest, OneQueryAtATimeGivesTheSame) {
  const std::vector<Variable> in = Inputs(6, 6, 2, 2);
  const std::vector<double> whole =
      Attention(in[0], in[1], in[2]).data().ToDoubles();
  for (int64_t t = 0; t < 6; ++t) {
    const auto first = [&](int v) {
      return Variable(in[v].data().Narrow(1, 0, t + 1));
    };
    const std::vector<double> one =
        Attention(Variable(in[0].data().Narrow(1, t, 1)), first(1), first(2))
            .data()
            .ToDoubles();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < 6; ++i) {
        EXPECT_NEAR(one[b * 6 + i], whole[(b * 6 + t) * 6 + i], 1e-14);
      }
    }
  }
}

TEST(AttentionFunctionTest, AnyStrides) {
  const std::vector<Variable> in = Inputs(4, 5, 2, 1);
  std::vector<Variable> scattered;
  for (const Variable& x : in) {
    const std::vector<double> values = x.data().Transpose(1, 3).ToDoubles();
    const Shape& s = x.shape();
    scattered.emplace_back(
        Tensor::FromVector(values, {s.dim(0), s.dim(3), s.dim(2), s.dim(1)})
            .Transpose(1, 3));
  }
  EXPECT_EQ(
      Attention(scattered[0], scattered[1], scattered[2]).data().ToDoubles(),
      Attention(in[0], in[1], in[2]).data().ToDoubles());
}

TEST(AttentionFunctionTest, SaysWhatDoesNotFit) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  std::vector<Variable> in = Inputs(4, 4, 3, 2);
  EXPECT_THROWS_ERROR(Attention(in[0], in[1], in[2]), kInvalid,
                      "H a multiple of G; got q float64 [2, 4, 3, 3]");
  in = Inputs(4, 4, 2, 2);
  EXPECT_THROWS_ERROR(Attention(in[0], in[1], RandomLeaf({2, 4, 2}, 1)),
                      kInvalid, "k and v [B, S, G, D]");
  EXPECT_THROWS_ERROR(
      Attention(in[0], in[1], in[2], {.causal = false, .sliding_window = 3}),
      kInvalid, "sliding window");
  EXPECT_THROWS_ERROR(
      Attention(in[0], in[1], in[2], {.dropout = {.probability = 1}}), kInvalid,
      "probability of dropout in [0, 1), got 1");
}

TEST(AttentionFunctionTest, MetaTensorsHaveShapesOnly) {
  const Variable x(Tensor::Empty({2, 3, 4, 5}, {DType::kFloat32, kMetaDevice}));
  EXPECT_EQ(Attention(x, x, x).shape(), (Shape{2, 3, 4, 5}));
}

}  // namespace
}  // namespace tessera
