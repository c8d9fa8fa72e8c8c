// Results do not depend on when things happen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/device/stream.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

Scenario Layers(int num_steps) {
  return {.make_model =
              [] {
                return MakeMlp({8, 8, 8, 8, 8, 8, 8, 8, 4});
              },
          .train =
              [](Module& model, Pass& pass) {
                const Variable x = CaseInput(2, 8, pass.rank(), pass.step());
                pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
              },
          .num_steps = num_steps,
          .learning_rate = 0.05};
}

// Eight layers, delays up to 2 ms before and after each collective.
TEST(TimingCases, Grd12DelaysChangeNoBit) {
  const Scenario scenario = Layers(4);
  const Outcome expected = RunSharded(scenario, 4, FullShard());
  for (Mode mode : AllModes(4)) {
    for (const StreamMode compute :
         {StreamMode::kInline, StreamMode::kQueued}) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", static_cast<int>(compute)));
      mode.compute = compute;
      mode.longest_delay = absl::Milliseconds(2);
      const Outcome actual = RunSharded(scenario, 4, mode);
      EXPECT_TRUE(actual.losses == expected.losses);
      EXPECT_TRUE(actual.parameters == expected.parameters);
    }
  }
}

int NumBackwards() {
  const char* text = std::getenv("TIMING_BACKWARDS");
  return text == nullptr ? 10 : std::atoi(text);
}

// What each rank holds of the gradients, after each backward.
using Gradients = std::vector<std::vector<std::vector<double>>>;

Gradients GradientsOf(const Mode& mode, int num_backwards) {
  Gradients gradients(4);
  Scenario scenario = Layers(num_backwards);
  scenario.train = [&gradients, train = scenario.train](Module& model,
                                                        Pass& pass) {
    train(model, pass);
    std::vector<double> mine;
    for (const NamedVariable& p : model.NamedParameters()) {
      if (!p.variable.grad().defined()) continue;
      const std::vector<double> grad = p.variable.grad().ToDoubles();
      mine.insert(mine.end(), grad.begin(), grad.end());
    }
    gradients[pass.rank()].push_back(std::move(mine));
  };
  RunSharded(scenario, 4, mode);
  return gradients;
}

// Delays up to 5 ms before and after each collective of a grid, and before the
// copies and kernels behind them.
TEST(TimingCases, Grd12EveryGradientIsThatWithoutDelays) {
  for (Mode mode : AllModes(4)) {
    if (mode.mesh.replicate != 2) continue;
    SCOPED_TRACE(mode.name);
    const Gradients expected = GradientsOf(mode, NumBackwards());
    ASSERT_EQ(expected[3].size(), static_cast<size_t>(NumBackwards()));
    ASSERT_FALSE(expected[3][0].empty());
    mode.compute = StreamMode::kQueued;
    mode.longest_delay = absl::Milliseconds(5);
    const Gradients actual = GradientsOf(mode, NumBackwards());
    EXPECT_TRUE(actual == expected);
  }
}

// The host runs ahead of the compute stream, without any delay.
TEST(TimingCases, QueuedComputeGivesTheSameBits) {
  const Scenario scenario = Layers(20);
  const Outcome expected = RunSharded(scenario, 2, FullShard());
  for (Mode mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    mode.compute = StreamMode::kQueued;
    for (const bool forward_prefetch : {false, true}) {
      mode.options.forward_prefetch = forward_prefetch;
      const Outcome actual = RunSharded(scenario, 2, mode);
      EXPECT_TRUE(actual.losses == expected.losses);
      EXPECT_TRUE(actual.parameters == expected.parameters);
    }
  }
}

// J.99: two runs with delays are the same run.
TEST(TimingCases, RunsRepeat) {
  const Scenario scenario = Layers(5);
  Mode mode = PerParameter();
  mode.compute = StreamMode::kQueued;
  mode.longest_delay = absl::Milliseconds(1);
  const Outcome first = RunSharded(scenario, 4, mode);
  const Outcome second = RunSharded(scenario, 4, mode);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.parameters, second.parameters);
}

}  // namespace
}  // namespace tessera
