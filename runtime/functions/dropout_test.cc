// Dropout's masks by place in training, its gradient, and recomputation.
#include "runtime/functions/dropout.h"

#include <vector>

#include "gtest/gtest.h"
#include "runtime/autograd/random_context.h"
#include "runtime/autograd/recompute.h"
#include "runtime/functions/reduce.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

// What a module "m" drops of ones [4, 50] in `context`.
Values MaskIn(const RandomContext& context, const std::string& name = "m") {
  const RandomContextGuard guard(context);
  const Variable x(ops::Ones({4, 50}));
  return functions::Dropout(x, 0.5, name).data().ToDoubles();
}

TEST(DropoutFunctionTest, EveryPlaceHasItsOwnMask) {
  const RandomContext here = {.seed = 1, .step = 2, .micro_batch = 3};
  const Values mask = MaskIn(here);
  EXPECT_EQ(MaskIn(here), mask);
  RandomContext other = here;
  other.seed = 9;
  EXPECT_NE(MaskIn(other), mask);
  other = here;
  other.step = 9;
  EXPECT_NE(MaskIn(other), mask);
  other = here;
  other.micro_batch = 9;
  EXPECT_NE(MaskIn(other), mask);
  other = here;
  other.first_sample = 4;
  EXPECT_NE(MaskIn(other), mask);
  EXPECT_NE(MaskIn(here, "another"), mask);
}

TEST(DropoutFunctionTest, SecondCallOfAModuleDropsOthers) {
  const RandomContextGuard guard({.seed = 1});
  const Variable x(ops::Ones({4, 50}));
  const Values first = functions::Dropout(x, 0.5, "m").data().ToDoubles();
  const RandomContext between = CurrentRandomContext();
  const Values second = functions::Dropout(x, 0.5, "m").data().ToDoubles();
  EXPECT_NE(first, second);
  const RandomContextGuard restored(between);
  EXPECT_EQ(functions::Dropout(x, 0.5, "m").data().ToDoubles(), second);
}

TEST(DropoutFunctionTest, BackwardDropsTheSameElements) {
  const Variable x(ops::Ones({4, 50}), /*requires_grad=*/true);
  const Variable y = functions::Dropout(x, 0.5, "m");
  functions::Sum(y).Backward();
  EXPECT_EQ(x.grad().ToDoubles(), y.data().ToDoubles());
}

TEST(DropoutFunctionTest, GradientMatchesDifferences) {
  const auto f = [](const std::vector<Variable>& v) {
    const RandomContextGuard guard({.seed = 5});
    return functions::Dropout(v[0], 0.3, "m");
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({3, 7}, 1)}));
}

TEST(DropoutFunctionTest, RecomputationDropsTheSame) {
  const RandomContextGuard guard({.seed = 1});
  const Variable x(ops::Ones({4, 50}), /*requires_grad=*/true);
  const auto f = [](const Variable& v) {
    return functions::Dropout(functions::Dropout(v, 0.3, "m"), 0.3, "m");
  };
  const Variable y = Recompute(f, x);
  functions::Sum(y).Backward();
  EXPECT_EQ(x.grad().ToDoubles(), y.data().ToDoubles());
}

TEST(DropoutFunctionTest, RefusesWrongProbabilities) {
  const Variable x(ops::Ones({4, 50}));
  for (double p : {-0.1, 1.0, 2.0}) {
    EXPECT_THROWS_ERROR(functions::Dropout(x, p, "m"),
                        absl::StatusCode::kInvalidArgument, "probability");
  }
}

}  // namespace
}  // namespace tessera
