#include "fsdp/comm/reduce_tree.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// Level by level, as the contract says it.
template <typename A>
A PlainTree(std::vector<A> values) {
  while (values.size() > 1) {
    std::vector<A> next;
    for (size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size()
                         ? static_cast<A>(values[i] + values[i + 1])
                         : values[i]);
    }
    values = next;
  }
  return values[0];
}

template <typename T>
std::vector<std::vector<T>> RandomInputs(int num_ranks, int64_t n) {
  std::mt19937 random(17 * num_ranks + static_cast<int>(n));
  std::uniform_real_distribution<float> uniform(-100, 100);
  std::vector<std::vector<T>> inputs(num_ranks);
  for (auto& input : inputs) {
    for (int64_t i = 0; i < n; ++i) {
      input.push_back(static_cast<T>(uniform(random)));
    }
  }
  return inputs;
}

template <typename T, typename A, typename Out>
void CompareWithPlainTree(int num_ranks, int64_t n, bool accumulate,
                          double divisor) {
  const auto inputs = RandomInputs<T>(num_ranks, n);
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<Out> output(n + 1, static_cast<Out>(3));
  ReduceTree({.inputs = pointers,
              .dtype = kDTypeOf<T>,
              .num_elements = n,
              .output = output.data(),
              .output_dtype = kDTypeOf<Out>,
              .accumulate = accumulate,
              .reduction = {.divisor = divisor}});
  for (int64_t i = 0; i < n; ++i) {
    std::vector<A> values;
    for (const auto& input : inputs) values.push_back(static_cast<A>(input[i]));
    A expected = static_cast<A>(PlainTree(values) / static_cast<A>(divisor));
    if (accumulate) expected = static_cast<A>(3) + expected;
    const Out rounded = static_cast<Out>(expected);
    ASSERT_EQ(std::memcmp(&output[i], &rounded, sizeof(Out)), 0)
        << num_ranks << " ranks, element " << i;
  }
  EXPECT_EQ(static_cast<A>(output[n]), static_cast<A>(3))
      << "wrote past the end";
}

TEST(ReduceTreeTest, EqualsPlainTree) {
  for (int num_ranks : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 31}) {
    for (int64_t n : {0, 1, 7, 255, 256, 257, 1000}) {
      for (bool accumulate : {false, true}) {
        CompareWithPlainTree<float, float, float>(num_ranks, n, accumulate, 1);
        CompareWithPlainTree<float, float, float>(num_ranks, n, accumulate, 3);
        CompareWithPlainTree<double, double, double>(num_ranks, n, accumulate,
                                                     num_ranks);
        CompareWithPlainTree<bfloat16, float, bfloat16>(num_ranks, n,
                                                        accumulate, 4);
        CompareWithPlainTree<bfloat16, float, float>(num_ranks, n, accumulate,
                                                     5);
        CompareWithPlainTree<float16, float, float>(num_ranks, n, accumulate,
                                                    1);
        CompareWithPlainTree<int64_t, int64_t, int64_t>(num_ranks, n,
                                                        accumulate, 1);
        CompareWithPlainTree<int32_t, int32_t, int32_t>(num_ranks, n,
                                                        accumulate, 1);
      }
    }
  }
}

TEST(ReduceTreeTest, TreeIsNotALine) {
  // (1 + 1e8) + (-1e8 + 1) = 0 or 1 by the tree; a line gives 1 + ... else.
  const float values[4] = {1, 1e8f, -1e8f, 1};
  std::vector<const void*> pointers;
  for (const float& value : values) pointers.push_back(&value);
  float output = -1;
  ReduceTree({.inputs = pointers, .num_elements = 1, .output = &output});
  EXPECT_EQ(output, (1.f + 1e8f) + (-1e8f + 1.f));
  EXPECT_NE(output, ((1.f + 1e8f) + -1e8f) + 1.f);
}

TEST(ReduceTreeTest, MaximumKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[3] = {1, nan, -5};
  const float b[3] = {2, 0, -7};
  const float c[3] = {0, 1, nan};
  const void* pointers[3] = {a, b, c};
  float output[3];
  ReduceTree({.inputs = pointers,
              .num_elements = 3,
              .output = output,
              .reduction = {.op = ReduceOp::kMax}});
  EXPECT_EQ(output[0], 2);
  EXPECT_TRUE(std::isnan(output[1]));
  EXPECT_TRUE(std::isnan(output[2]));
}

TEST(ReduceTreeTest, InPlace) {
  for (int place : {0, 1, 2}) {
    auto inputs = RandomInputs<float>(3, 700);
    const auto original = inputs;
    std::vector<const void*> pointers;
    for (auto& input : inputs) pointers.push_back(input.data());
    ReduceTree({.inputs = pointers,
                .num_elements = 700,
                .output = inputs[place].data()});
    for (int i = 0; i < 700; ++i) {
      ASSERT_EQ(inputs[place][i],
                (original[0][i] + original[1][i]) + original[2][i]);
    }
  }
}

TEST(ReduceTreeTest, RefusesWhatHasNoMeaning) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_OK(CheckReduction(DType::kBFloat16, DType::kFloat32, {}, true, "x"));
  EXPECT_THAT(
      CheckReduction(DType::kFloat32, DType::kBFloat16, {}, false, "Op"),
      StatusIs(code, "the result is bfloat16"));
  EXPECT_THAT(CheckReduction(DType::kBool, DType::kBool, {}, false, "Op"),
              StatusIs(code, "booleans have no sum"));
  // Counts travel beside gradients, and stay whole.
  EXPECT_OK(CheckReduction(DType::kInt64, DType::kInt64, {.divisor = 2}, false,
                           "Op"));
  EXPECT_THAT(CheckReduction(DType::kFloat32, DType::kFloat32, {.divisor = 0},
                             false, "Op"),
              StatusIs(code, "positive divisor"));
  EXPECT_THAT(CheckReduction(DType::kFloat32, DType::kFloat32,
                             {.op = ReduceOp::kMax, .divisor = 2}, false, "Op"),
              StatusIs(code, "no divisor"));
}

}  // namespace
}  // namespace tessera
