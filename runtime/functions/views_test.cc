// Views, their gradients, and what they share memory with.
#include "runtime/functions/views.h"

#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;

// Checks the gradient of a view of a [2, 3, 4] leaf.
void CheckView(const std::function<Variable(const Variable&)>& view) {
  EXPECT_TRUE(GradCheck([&](const Variables& v) { return view(v[0]); },
                        {RandomLeaf({2, 3, 4}, 1)}));
}

TEST(ViewsTest, Gradients) {
  using V = const Variable&;
  CheckView([](V x) { return functions::Reshape(x, {4, 6}); });
  CheckView([](V x) { return functions::Reshape(x, {-1}); });
  CheckView([](V x) { return functions::Transpose(x, 0, -1); });
  CheckView([](V x) { return functions::Permute(x, {1, 2, 0}); });
  CheckView([](V x) { return functions::Narrow(x, 1, 1, 2); });
  CheckView([](V x) { return functions::Narrow(x, -1, 3, 1); });
  CheckView([](V x) { return functions::Select(x, 1, 2); });
  CheckView([](V x) { return functions::Unsqueeze(x, 1); });
  CheckView([](V x) { return functions::Unsqueeze(x, -1); });
  CheckView(
      [](V x) { return functions::Squeeze(functions::Narrow(x, 1, 0, 1), 1); });
  CheckView([](V x) {
    return functions::Expand(functions::Unsqueeze(x, 1), {2, 5, 3, 4});
  });
  CheckView([](V x) {
    return functions::Expand(functions::Narrow(x, 0, 1, 1), {6, 3, 4});
  });
  // A reshape of strided memory copies.
  CheckView([](V x) {
    return functions::Reshape(functions::Transpose(x, 0, 1), {6, 4});
  });
  CheckView(
      [](V x) { return functions::Contiguous(functions::Transpose(x, 0, 2)); });
}

TEST(ViewsTest, CatGradients) {
  for (int dim : {0, 1, -1}) {
    const auto f = [dim](const Variables& v) { return functions::Cat(v, dim); };
    EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 3}, 1), RandomLeaf({2, 3}, 2)}));
  }
  const auto f = [](const Variables& v) { return functions::Cat(v, 0); };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 3}, 1), RandomLeaf({0, 3}, 3),
                            RandomLeaf({1, 3}, 2)}));
}

TEST(ViewsTest, SplitGradients) {
  const auto f = [](const Variables& v) {
    const Variables parts = functions::Split(v[0], {1, 2, 1}, 2);
    return functions::Cat({parts[2], parts[0], parts[0], parts[1]}, 2);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 3, 4}, 1)}));
}

TEST(ViewsTest, UnusedPartOfSplitHasZeroGradient) {
  const Variable x = RandomLeaf({4}, 1);
  const Variables parts = functions::Split(x, {1, 2, 1}, 0);
  parts[1].Backward(Tensor::FromVector<double>({7, 8}, {2}));
  EXPECT_EQ(x.grad().ToDoubles(), (std::vector<double>{0, 7, 8, 0}));
}

TEST(ViewsTest, ViewsShareMemory) {
  const Variable x = RandomLeaf({2, 3, 4}, 1);
  const std::shared_ptr<Storage> storage = x.data().storage();
  EXPECT_EQ(functions::Reshape(x, {6, 4}).data().storage(), storage);
  EXPECT_EQ(functions::Permute(x, {2, 1, 0}).data().storage(), storage);
  EXPECT_EQ(functions::Split(x, {1, 2}, 1)[1].data().storage(), storage);
  EXPECT_NE(
      functions::Contiguous(functions::Transpose(x, 0, 1)).data().storage(),
      storage);
  EXPECT_TRUE(functions::Contiguous(x).Is(x));
}

TEST(ViewsTest, Errors) {
  const Variable x = RandomLeaf({2, 3}, 1);
  EXPECT_THROWS_ERROR(functions::Split(x, {1, 1}, 1),
                      absl::StatusCode::kInvalidArgument,
                      "Split: sizes add up to 2");
  EXPECT_THROWS_ERROR(functions::Cat({}, 0), absl::StatusCode::kInvalidArgument,
                      "Cat: wants at least one part");
  EXPECT_THROWS_ERROR(functions::Cat({x, RandomLeaf({2, 4}, 1)}, 0),
                      absl::StatusCode::kInvalidArgument, "Cat along dim 0");
}

}  // namespace
}  // namespace tessera
