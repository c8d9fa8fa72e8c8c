// Loss scaling: when it steps, how the scale moves, and what is out of order.
#include "runtime/optim/grad_scaler.h"

#include <limits>

#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class GradScalerTest : public ::testing::Test {
 protected:
  // A gradient of `value` times the scale, as backward leaves it.
  void SetGradient(const GradScaler& scaler, double value) {
    x_.set_grad(ops::Full({3}, value * scaler.scale()));
  }
  // Whether the optimizer stepped.
  bool Step(GradScaler& scaler, double gradient) {
    SetGradient(scaler, gradient);
    const bool stepped = scaler.Step(optimizer_);
    scaler.Update();
    return stepped;
  }
  double Value() const { return x_.data().ToDoubles()[1]; }

  Variable x_{ops::Zeros({3}), true};
  Sgd optimizer_{{{{{"x", x_}}, {.lr = 1}}}};
};

TEST_F(GradScalerTest, StartsAsTorch) {
  EXPECT_EQ(GradScaler().scale(), 65536);
  GradScaler scaler;
  for (int i = 0; i < 1999; ++i) EXPECT_TRUE(Step(scaler, 0));
  EXPECT_EQ(scaler.scale(), 65536);
  Step(scaler, 0);
  EXPECT_EQ(scaler.scale(), 131072);
}

TEST_F(GradScalerTest, ScalesTheLossAndUnscalesItsGradients) {
  GradScaler scaler({.init_scale = 8});
  const Variable loss =
      functions::Mul(x_, Variable(Tensor::FromVector<float>({1, 2, 3}, {3})));
  const Variable scaled = scaler.Scale(loss);
  scaled.Backward(ops::Ones({3}));
  EXPECT_EQ(x_.grad().ToDoubles(), (std::vector<double>{8, 16, 24}));
  scaler.Unscale(optimizer_);
  EXPECT_EQ(x_.grad().ToDoubles(), (std::vector<double>{1, 2, 3}));
  EXPECT_TRUE(scaler.Step(optimizer_));  // Does not unscale again.
  EXPECT_EQ(x_.data().ToDoubles(), (std::vector<double>{-1, -2, -3}));
}

TEST_F(GradScalerTest, UnscalesAndClipsInTheOptimizersPass) {
  GradScaler scaler({.init_scale = 16, .growth_interval = 2});
  SetGradient(scaler, 2);
  EXPECT_TRUE(scaler.StepFused(optimizer_, /*finite=*/true, 0.25));
  EXPECT_EQ(Value(), -0.5);
  EXPECT_EQ(x_.grad().ToDoubles()[0], 32);  // No pass over them.
  EXPECT_THROWS_ERROR(scaler.StepFused(optimizer_, true),
                      absl::StatusCode::kFailedPrecondition, "StepFused");
  scaler.Update();
  EXPECT_EQ(scaler.state().good_steps, 1);
  EXPECT_FALSE(scaler.StepFused(optimizer_, /*finite=*/false));
  scaler.Update();
  EXPECT_EQ(Value(), -0.5);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST_F(GradScalerTest, SkipsBadStepsAndMovesTheScale) {
  GradScaler scaler({.init_scale = 16, .growth_interval = 2});
  EXPECT_TRUE(Step(scaler, 1));
  EXPECT_EQ(scaler.state().good_steps, 1);
  EXPECT_FALSE(Step(scaler, kInf));
  EXPECT_EQ(Value(), -1);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.state().good_steps, 0);
  EXPECT_FALSE(Step(scaler, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(Step(scaler, 1));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(Step(scaler, 1));
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(Value(), -3);
}

TEST_F(GradScalerTest, OtherFactors) {
  GradScaler scaler({.init_scale = 16,
                     .growth_factor = 4,
                     .backoff_factor = 0.25,
                     .growth_interval = 1});
  Step(scaler, 1);
  EXPECT_EQ(scaler.scale(), 64);
  Step(scaler, kInf);
  EXPECT_EQ(scaler.scale(), 16);
}

TEST_F(GradScalerTest, RefusesWhatIsOutOfOrder) {
  GradScaler scaler;
  const auto code = absl::StatusCode::kFailedPrecondition;
  EXPECT_THROWS_ERROR(scaler.Update(), code, "Update without a Step");
  SetGradient(scaler, 1);
  scaler.Unscale(optimizer_);
  EXPECT_THROWS_ERROR(scaler.Unscale(optimizer_), code, "called twice");
  scaler.Step(optimizer_);
  EXPECT_THROWS_ERROR(scaler.Unscale(optimizer_), code, "after Step");
  EXPECT_THROWS_ERROR(scaler.Step(optimizer_), code, "Step called twice");
  EXPECT_EQ(Value(), -1);
  scaler.Update();
  EXPECT_TRUE(Step(scaler, 1));
}

TEST_F(GradScalerTest, RefusesSenselessOptions) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THROWS_ERROR(GradScaler({.init_scale = 0}), code, "init_scale");
  EXPECT_THROWS_ERROR(GradScaler({.growth_factor = 1}), code, "growth_factor");
  EXPECT_THROWS_ERROR(GradScaler({.backoff_factor = 1}), code,
                      "backoff_factor");
  EXPECT_THROWS_ERROR(GradScaler({.growth_interval = 0}), code,
                      "growth_interval");
}

// NRM-06: a rank without gradients joins the reduction, and obeys it.
TEST_F(GradScalerTest, RanksWithoutGradientsJoin) {
  int num_reductions = 0;
  bool other_found_inf = false;
  GradScaler scaler({.init_scale = 4}, [&](Tensor& found_inf) {
    ++num_reductions;
    EXPECT_EQ(found_inf.Item(), 0);
    if (other_found_inf) ops::Fill(found_inf, 1);
  });
  EXPECT_TRUE(scaler.Step(optimizer_));
  scaler.Update();
  EXPECT_EQ(num_reductions, 1);
  other_found_inf = true;
  EXPECT_FALSE(Step(scaler, 1));  // Its own gradient is finite.
  EXPECT_EQ(num_reductions, 2);
  EXPECT_EQ(Value(), 0);
  EXPECT_EQ(scaler.scale(), 2);
}

TEST_F(GradScalerTest, SeveralOptimizersShareAScale) {
  Variable y(ops::Zeros({1}), true);
  Sgd second({{{{"y", y}}, {.lr = 1}}});
  GradScaler scaler({.init_scale = 4});
  SetGradient(scaler, 1);
  y.set_grad(ops::Full({1}, kInf));
  EXPECT_TRUE(scaler.Step(optimizer_));
  EXPECT_FALSE(scaler.Step(second));
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_EQ(Value(), -1);
}

TEST_F(GradScalerTest, ASkippedStepDropsItsGradScale) {
  GradScaler scaler;
  SetGradient(scaler, kInf);
  optimizer_.SetGradScale(ops::Full({1}, 0.5));
  EXPECT_FALSE(scaler.Step(optimizer_));
  scaler.Update();
  EXPECT_TRUE(Step(scaler, 1));
  EXPECT_EQ(Value(), -1);
}

TEST_F(GradScalerTest, ResumesFromItsState) {
  GradScaler scaler({.init_scale = 16, .growth_interval = 2});
  Step(scaler, 1);
  GradScaler resumed({.growth_interval = 2});
  resumed.set_state(scaler.state());
  Step(resumed, 1);
  EXPECT_EQ(resumed.scale(), 32);
}

TEST_F(GradScalerTest, DisabledItOnlySteps) {
  GradScaler scaler({.enabled = false});
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.Scale(x_).Is(x_));
  x_.set_grad(ops::Full({3}, kInf));
  scaler.Unscale(optimizer_);
  EXPECT_TRUE(scaler.Step(optimizer_));
  scaler.Update();
  EXPECT_EQ(Value(), -kInf);
}

}  // namespace
}  // namespace tessera
