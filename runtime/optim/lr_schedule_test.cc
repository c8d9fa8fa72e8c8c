// Learning rates against their formulas and at their corners.
#include "runtime/optim/lr_schedule.h"

#include <cmath>
#include <limits>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr double kPi = 3.14159265358979323846;

TEST(LrSchedule, ConstantAfterWarmUp) {
  const LrSchedule s = {.peak = 0.8, .warmup_steps = 4};
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
  for (int step = 0; step < 6; ++step) {
    EXPECT_DOUBLE_EQ(LearningRate(s, step), expected[step]);
  }
  EXPECT_EQ(LearningRate({.peak = 0.8}, 0), 0.8);
  EXPECT_EQ(LearningRate({.peak = 0.8}, 1000000), 0.8);
}

TEST(LrSchedule, Linear) {
  const LrSchedule s = {.decay = LrDecay::kLinear,
                        .peak = 1,
                        .minimum = 0.1,
                        .warmup_steps = 10,
                        .total_steps = 110};
  for (int step = 0; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(LearningRate(s, step), (step + 1) / 10.0);
  }
  for (int step = 10; step < 110; ++step) {
    EXPECT_NEAR(LearningRate(s, step), 1 - 0.9 * (step - 10) / 100, 1e-15);
  }
  EXPECT_EQ(LearningRate(s, 10), 1);
  EXPECT_EQ(LearningRate(s, 110), 0.1);
  EXPECT_EQ(LearningRate(s, 5000), 0.1);
}

TEST(LrSchedule, Cosine) {
  const LrSchedule s = {.decay = LrDecay::kCosine,
                        .peak = 3,
                        .minimum = 1,
                        .warmup_steps = 2,
                        .total_steps = 42};
  EXPECT_EQ(LearningRate(s, 0), 1.5);
  EXPECT_EQ(LearningRate(s, 1), 3);
  for (int step = 2; step < 42; ++step) {
    EXPECT_NEAR(LearningRate(s, step), 2 + std::cos(kPi * (step - 2) / 40),
                1e-14);
  }
  EXPECT_EQ(LearningRate(s, 2), 3);
  EXPECT_NEAR(LearningRate(s, 22), 2, 1e-15);  // Half way.
  EXPECT_EQ(LearningRate(s, 42), 1);
  EXPECT_EQ(LearningRate(s, 43), 1);
}

TEST(LrSchedule, AllWarmUp) {
  const LrSchedule s = {.decay = LrDecay::kCosine,
                        .peak = 1,
                        .minimum = 0.25,
                        .warmup_steps = 5,
                        .total_steps = 5};
  EXPECT_OK(Validate(s));
  EXPECT_EQ(LearningRate(s, 4), 1);
  EXPECT_EQ(LearningRate(s, 5), 0.25);
}

TEST(LrSchedule, NamesOfDecays) {
  EXPECT_EQ(*ParseLrDecay("constant"), LrDecay::kConstant);
  EXPECT_EQ(*ParseLrDecay("linear"), LrDecay::kLinear);
  EXPECT_EQ(*ParseLrDecay("cosine"), LrDecay::kCosine);
  EXPECT_THAT(ParseLrDecay("step"),
              StatusIs(absl::StatusCode::kInvalidArgument, "not \"step\""));
}

TEST(LrSchedule, ValidateNamesTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const LrSchedule good = {.decay = LrDecay::kLinear,
                           .peak = 1,
                           .warmup_steps = 3,
                           .total_steps = 9};
  EXPECT_OK(Validate(good));
  EXPECT_OK(Validate({.peak = 1}));
  LrSchedule s = good;
  s.peak = -1;
  EXPECT_THAT(Validate(s), StatusIs(code, "peak"));
  s.peak = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Validate(s), StatusIs(code, "peak"));
  s = good;
  s.minimum = 2;
  EXPECT_THAT(Validate(s), StatusIs(code, "minimum"));
  s = good;
  s.warmup_steps = -1;
  EXPECT_THAT(Validate(s), StatusIs(code, "warmup_steps"));
  s = good;
  s.total_steps = 2;
  EXPECT_THAT(Validate(s), StatusIs(code, "total_steps"));
}

}  // namespace
}  // namespace tessera
