#include "runtime/functions/softmax.h"

#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

TEST(SoftmaxFunctionTest, Gradients) {
  const auto f = [](const std::vector<Variable>& in) {
    return functions::Softmax(in[0]);
  };
  for (const Shape& shape :
       {Shape{5}, Shape{1, 1}, Shape{3, 7}, Shape{2, 3, 17}, Shape{0, 4}}) {
    EXPECT_TRUE(GradCheck(f, {RandomLeaf(shape, 1)})) << shape.ToString();
  }
}

TEST(SoftmaxFunctionTest, RowsOfAView) {
  const Variable x = RandomLeaf({4, 6}, 1);
  const Variable view(x.data().Transpose(0, 1));
  const std::vector<double> y = functions::Softmax(view).data().ToDoubles();
  for (int64_t row = 0; row < 6; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < 4; ++c) sum += y[row * 4 + c];
    EXPECT_NEAR(sum, 1, 1e-14);
  }
}

TEST(SoftmaxFunctionTest, RefusesScalars) {
  EXPECT_THROWS_ERROR(functions::Softmax(RandomLeaf({}, 1)),
                      absl::StatusCode::kInvalidArgument, "Softmax: wants");
}

}  // namespace
}  // namespace tessera
