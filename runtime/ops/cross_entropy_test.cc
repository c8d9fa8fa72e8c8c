// Losses of tensors: chunks of rows, and views.
#include "runtime/ops/cross_entropy.h"

#include <cmath>

#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

struct Problem {
  Tensor logits = Tensor::FromVector(RandomValues(7 * 5, 1), {7, 5});
  Tensor targets = Tensor::FromVector<int64_t>({0, 4, -100, 2, 2, 1, 3}, {7});
  Tensor loss = Tensor::Empty({}, {DType::kFloat64});
  Tensor logsumexp = Tensor::Empty({7}, {DType::kFloat64});
  ops::CrossEntropyOptions options = {.scale = 0.5};
};

TEST(CrossEntropyTest, ChunksOfRowsAddUp) {
  Problem p;
  ops::CrossEntropyInto(p.logits, p.targets, p.options, {p.loss, p.logsumexp});
  const double whole = p.loss.Item();
  const std::vector<double> logsumexp = p.logsumexp.ToDoubles();
  for (int64_t begin = 0; begin < 7; begin += 3) {
    const int64_t length = std::min<int64_t>(3, 7 - begin);
    ops::CrossEntropyInto(p.logits.Narrow(0, begin, length),
                          p.targets.Narrow(0, begin, length), p.options,
                          {p.loss, p.logsumexp.Narrow(0, begin, length),
                           /*accumulate=*/begin > 0});
  }
  EXPECT_NEAR(p.loss.Item(), whole, 1e-14);
  EXPECT_EQ(p.logsumexp.ToDoubles(), logsumexp);
}

TEST(CrossEntropyTest, MeanOfAllTargetsInEveryChunk) {
  Problem p;
  ops::CrossEntropyInto(p.logits, p.targets, {.scale = 1.0 / 6}, {p.loss, {}});
  const double expected = p.loss.Item();
  p.options = {.counted = p.targets};
  ops::CrossEntropyInto(p.logits.Narrow(0, 0, 4), p.targets.Narrow(0, 0, 4),
                        p.options, {p.loss, {}});
  ops::CrossEntropyInto(p.logits.Narrow(0, 4, 3), p.targets.Narrow(0, 4, 3),
                        p.options, {p.loss, {}, true});
  EXPECT_NEAR(p.loss.Item(), expected, 1e-14);
}

TEST(CrossEntropyTest, GradientOfViewsInPlace) {
  Problem p;
  ops::CrossEntropyInto(p.logits, p.targets, p.options, {p.loss, p.logsumexp});
  const Tensor grad_loss = Tensor::FromVector<double>({2.0}, {});
  const Tensor wide = Tensor::Empty({7, 9}, {DType::kFloat64});
  const Tensor apart = wide.Narrow(1, 3, 5);
  ops::CrossEntropyBackward(p.logits, p.targets, p.logsumexp, p.options,
                            {grad_loss, apart});
  const std::vector<double> expected = apart.ToDoubles();
  // Each row of a softmax's gradient adds up to nothing.
  for (int64_t r = 0; r < 7; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < 5; ++c) sum += expected[r * 5 + c];
    EXPECT_NEAR(sum, 0, 1e-14);
  }
  const int64_t version = p.logits.storage()->version();
  ops::CrossEntropyBackward(p.logits, p.targets, p.logsumexp, p.options,
                            {grad_loss, p.logits});
  EXPECT_EQ(p.logits.ToDoubles(), expected);
  EXPECT_GT(p.logits.storage()->version(), version);
}

TEST(CrossEntropyTest, Errors) {
  Problem p;
  EXPECT_THROWS_ERROR(
      ops::CrossEntropyInto(p.logits, p.targets.Narrow(0, 0, 3), p.options,
                            {p.loss, {}}),
      absl::StatusCode::kInvalidArgument,
      "CrossEntropy: wants floating logits [N, V] and int64 targets [N]");
}

}  // namespace
}  // namespace tessera
