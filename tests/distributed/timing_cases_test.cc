// Results do not depend on when things happen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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
