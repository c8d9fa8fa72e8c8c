// Losses: their gradients, and that every way of making logits gives the same.
#include "runtime/functions/cross_entropy.h"

#include "runtime/device/allocator.h"
#include "runtime/functions/matmul.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;
using functions::LinearCrossEntropyOptions;

Tensor Targets() {
  return Tensor::FromVector<int64_t>({3, -100, 0, 5, 3, 1, -100}, {7});
}

// Rows kept, and a chunk of 1, 3 and 100 rows of 6 float64 logits.
std::vector<LinearCrossEntropyOptions> AllWays() {
  std::vector<LinearCrossEntropyOptions> ways(4);
  for (int i = 1; i < 4; ++i) ways[i].max_logits_bytes = 0;
  ways[1].chunk_bytes = 1;
  ways[2].chunk_bytes = 3 * 6 * 8;
  ways[3].chunk_bytes = 100 * 6 * 8;
  return ways;
}

TEST(CrossEntropyTest, Gradients) {
  for (std::optional<double> divisor : {std::optional<double>(), {3.5}}) {
    const auto f = [&](const Variables& v) {
      return functions::CrossEntropy(v[0], Targets(), {.divisor = divisor});
    };
    EXPECT_TRUE(GradCheck(f, {RandomLeaf({7, 6}, 1)}));
  }
}

TEST(CrossEntropyTest, LinearGradients) {
  for (std::optional<double> divisor : {std::optional<double>(), {3.5}}) {
    for (LinearCrossEntropyOptions options : AllWays()) {
      options.loss.divisor = divisor;
      const auto f = [&](const Variables& v) {
        return functions::LinearCrossEntropy(v[0], v[1], Targets(), options);
      };
      EXPECT_TRUE(GradCheck(f, {RandomLeaf({7, 4}, 1), RandomLeaf({6, 4}, 2)}));
    }
  }
}

TEST(CrossEntropyTest, LinearEqualsItsParts) {
  const Variable hidden = RandomLeaf({7, 4}, 1);
  const Variable weight = RandomLeaf({6, 4}, 2);
  const double expected =
      functions::CrossEntropy(functions::Linear(hidden, weight, Variable()),
                              Targets())
          .data()
          .Item();
  for (const LinearCrossEntropyOptions& options : AllWays()) {
    const double loss =
        functions::LinearCrossEntropy(hidden, weight, Targets(), options)
            .data()
            .Item();
    EXPECT_NEAR(loss, expected, 1e-14);
  }
}

TEST(CrossEntropyTest, MeanCountsTargetsThatAreNotIgnored) {
  const Variable logits(
      Tensor::FromVector<double>(std::vector<double>(7 * 6, 0.0), {7, 6}));
  const auto loss = [&](std::optional<double> divisor) {
    return functions::CrossEntropy(logits, Targets(), {.divisor = divisor})
        .data()
        .Item();
  };
  EXPECT_NEAR(loss({}), std::log(6.0), 1e-12);
  EXPECT_NEAR(loss(10.0), 0.5 * std::log(6.0), 1e-12);
}

// A second backward finds the kept logits used up and makes them again.
TEST(CrossEntropyTest, SecondBackwardOfRetainedGraph) {
  const Variable hidden = RandomLeaf({7, 4}, 1);
  const Variable weight = RandomLeaf({6, 4}, 2);
  const Variable loss =
      functions::LinearCrossEntropy(hidden, weight, Targets());
  loss.Backward(Tensor(), /*retain_graph=*/true);
  std::vector<double> twice = weight.grad().ToDoubles();
  for (double& v : twice) v *= 2;
  loss.Backward();
  EXPECT_TRUE(AllCloseAs(DType::kFloat64, weight.grad().ToDoubles(), twice, 7));
}

TEST(CrossEntropyTest, LowPrecisionHiddenStates) {
  const auto cast = [](const Variable& v) {
    std::vector<bfloat16> values;
    for (double x : v.data().ToDoubles()) {
      values.emplace_back(static_cast<float>(x));
    }
    return Variable(Tensor::FromVector(values, v.shape()), true);
  };
  const Variable hidden = cast(RandomLeaf({7, 4}, 1));
  const Variable weight = cast(RandomLeaf({6, 4}, 2));
  const auto exact = [](const Variable& v) {
    return Variable(Tensor::FromVector(v.data().ToDoubles(), v.shape()), true);
  };
  const Variable exact_hidden = exact(hidden), exact_weight = exact(weight);
  const Variable expected =
      functions::LinearCrossEntropy(exact_hidden, exact_weight, Targets());
  expected.Backward();
  for (const LinearCrossEntropyOptions& options : AllWays()) {
    Variable h = hidden, w = weight;
    h.ZeroGrad();
    w.ZeroGrad();
    const Variable loss =
        functions::LinearCrossEntropy(h, w, Targets(), options);
    loss.Backward();
    EXPECT_EQ(loss.dtype(), DType::kFloat32);
    EXPECT_TRUE(AllCloseAs(DType::kFloat32, loss.data().ToDoubles(),
                           expected.data().ToDoubles(), 28));
    EXPECT_EQ(w.grad().dtype(), DType::kFloat32);
    EXPECT_TRUE(AllCloseAs(DType::kBFloat16, w.grad().ToDoubles(),
                           exact_weight.grad().ToDoubles(), 7));
    EXPECT_TRUE(AllCloseAs(DType::kBFloat16, h.grad().ToDoubles(),
                           exact_hidden.grad().ToDoubles(), 7));
  }
}

TEST(CrossEntropyTest, NoRowsGiveNoLossAndZeroGradients) {
  for (const LinearCrossEntropyOptions& options : AllWays()) {
    const Variable hidden = RandomLeaf({0, 4}, 1);
    const Variable weight = RandomLeaf({6, 4}, 2);
    const Variable loss = functions::LinearCrossEntropy(
        hidden, weight, Tensor::FromVector<int64_t>({}, {0}), options);
    EXPECT_EQ(loss.data().Item(), 0.0);
    loss.Backward();
    EXPECT_EQ(weight.grad().ToDoubles(), std::vector<double>(24, 0.0));
  }
}

// Logits of 256 rows of 512 float32 are 512 KiB. Kept, forward and backward
// hold them once; in chunks of 64 KiB they are never there together.
TEST(CrossEntropyTest, LogitsAreNeverStoredTwice) {
  const auto peak = [](const LinearCrossEntropyOptions& options) {
    const Variable hidden(
        Tensor::FromVector(std::vector<float>(256 * 4, 0.5f), {256, 4}), true);
    const Variable weight(
        Tensor::FromVector(std::vector<float>(512 * 4, 0.5f), {512, 4}), true);
    const Tensor targets =
        Tensor::FromVector(std::vector<int64_t>(256, 3), {256});
    Allocator& allocator = AllocatorOf(CurrentDevice());
    allocator.ResetPeak();
    const int64_t before =
        allocator.stats().current(MemoryCategory::kActivation);
    functions::LinearCrossEntropy(hidden, weight, targets, options).Backward();
    return allocator.stats().peak(MemoryCategory::kActivation) - before;
  };
  constexpr int64_t kLogits = 512 << 10;
  constexpr int64_t kSmall = 16 << 10;  // Gradients and sums of rows.
  EXPECT_LE(peak({}), kLogits + kSmall);
  EXPECT_LE(peak({.max_logits_bytes = 0, .chunk_bytes = 64 << 10}),
            (64 << 10) + kSmall);
}

TEST(CrossEntropyTest, Errors) {
  EXPECT_THROWS_ERROR(
      functions::LinearCrossEntropy(RandomLeaf({7, 4}, 1),
                                    RandomLeaf({6, 5}, 2), Targets()),
      absl::StatusCode::kInvalidArgument, "LinearCrossEntropy: wants hidden");
  EXPECT_THROWS_ERROR(functions::CrossEntropy(RandomLeaf({7, 5}, 1), Targets()),
                      absl::StatusCode::kOutOfRange, "target 5 at position 3");
  EXPECT_THROWS_ERROR(functions::CrossEntropy(RandomLeaf({6, 6}, 1), Targets()),
                      absl::StatusCode::kInvalidArgument,
                      "CrossEntropy: wants floating");
}

}  // namespace
}  // namespace tessera
