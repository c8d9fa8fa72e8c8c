// Steps as data: what is kept, ordered, printed and compared.
#include "fsdp/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kNames = {"(root)", "h.0", "h.1"};

ScheduleStep Step(StepKind kind, int unit, bool prefetch = false,
                  bool backward = false) {
  return {kind, unit, prefetch, backward};
}

TEST(Schedule, KeepsThisIterationAndTheOneBefore) {
  Schedule schedule;
  EXPECT_THAT(schedule.current(), IsEmpty());
  EXPECT_THAT(schedule.previous(), IsEmpty());
  for (int iteration = 0; iteration < 3; ++iteration) {
    schedule.Begin();
    schedule.Add(Step(StepKind::kGather, iteration));
    schedule.Add(Step(StepKind::kWait, iteration));
    EXPECT_THAT(schedule.current(),
                ElementsAre(Step(StepKind::kGather, iteration),
                            Step(StepKind::kWait, iteration)));
    if (iteration == 0) {
      EXPECT_THAT(schedule.previous(), IsEmpty());
    } else {
      EXPECT_THAT(schedule.previous(),
                  ElementsAre(Step(StepKind::kGather, iteration - 1),
                              Step(StepKind::kWait, iteration - 1)));
    }
  }
}

// Tied units are gathered twice, recomputed ones in backward.
TEST(Schedule, ForwardOrderIsThatOfFirstGathersInForward) {
  Schedule schedule;
  schedule.Begin();
  schedule.Add(Step(StepKind::kWait, 0));
  schedule.Add(Step(StepKind::kGather, 2));
  schedule.Add(Step(StepKind::kGather, 1, /*prefetch=*/true));
  schedule.Add(Step(StepKind::kReshard, 2));
  schedule.Add(Step(StepKind::kGather, 2));
  schedule.Add(Step(StepKind::kGather, 0, false, /*backward=*/true));
  EXPECT_THAT(schedule.ForwardOrder(), ElementsAre(2, 1));
  schedule.Begin();
  EXPECT_THAT(schedule.ForwardOrder(), IsEmpty());
}

TEST(Schedule, ALineAStep) {
  Schedule schedule;
  schedule.Begin();
  EXPECT_EQ(schedule.ToString(kNames), "");
  schedule.Add(Step(StepKind::kGather, 1, /*prefetch=*/true));
  schedule.Add(Step(StepKind::kWait, 0));
  schedule.Add(Step(StepKind::kReshard, 1));
  schedule.Add(Step(StepKind::kReduce, 2, false, /*backward=*/true));
  schedule.Add(Step(StepKind::kFinish, 2, false, /*backward=*/true));
  EXPECT_EQ(schedule.ToString(kNames),
            "forward gather h.0 (prefetch)\n"
            "forward wait (root)\n"
            "forward reshard h.0\n"
            "backward reduce h.1\n"
            "backward finish h.1\n");
}

TEST(Schedule, DifferencesNameTheFirstStepAndBothSides) {
  const std::vector<ScheduleStep> a = {Step(StepKind::kGather, 1),
                                       Step(StepKind::kWait, 1)};
  std::vector<ScheduleStep> b = a;
  EXPECT_EQ(DescribeDifference(a, b, kNames), "");
  b[1].unit = 2;
  EXPECT_EQ(DescribeDifference(a, b, kNames),
            "step 1: forward wait h.0 against forward wait h.1");
  b = a;
  b[0].prefetch = true;
  b[1].unit = 2;
  EXPECT_EQ(DescribeDifference(a, b, kNames),
            "step 0: forward gather h.0 against forward gather h.0 (prefetch)");
  b = a;
  b[1].backward = true;
  EXPECT_EQ(DescribeDifference(a, b, kNames),
            "step 1: forward wait h.0 against backward wait h.0");
}

TEST(Schedule, AShorterScheduleDiffersAtItsEnd) {
  const std::vector<ScheduleStep> a = {Step(StepKind::kGather, 1)};
  EXPECT_EQ(DescribeDifference(a, {}, kNames),
            "step 0: forward gather h.0 against the end");
  EXPECT_EQ(DescribeDifference({}, a, kNames),
            "step 0: the end against forward gather h.0");
  EXPECT_EQ(DescribeDifference({}, {}, kNames), "");
}

}  // namespace
}  // namespace tessera
