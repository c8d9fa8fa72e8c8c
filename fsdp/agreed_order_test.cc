// Who joins what, and when, where ranks run different children of a module.
#include "fsdp/agreed_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Experts : public Module {
 public:
  Experts() : Module("Experts") {}
};

// An order that writes down the units it joins.
class AgreedOrderTest : public ::testing::Test {
 protected:
  AgreedOrder Order(const std::vector<int>& units) {
    return AgreedOrder(
        &experts_, units,
        {.join_forward = [this](int unit) { forward_.push_back(unit); },
         .join_backward = [this](int unit) { backward_.push_back(unit); },
         .hold = [this](int unit) { held_.push_back(unit); },
         .finish = [this](int unit) { finished_.push_back(unit); }});
  }
  static void Forward(AgreedOrder& order, const std::vector<int>& reached,
                      int64_t now = 1, bool training = true) {
    order.BeginForward(training, now);
    for (int unit : reached) order.ReachForward(unit);
    order.EndForward();
  }

  Experts experts_;
  std::vector<int> forward_;
  std::vector<int> backward_;
  std::vector<int> held_;
  std::vector<int> finished_;
};

TEST_F(AgreedOrderTest, ForwardJoinsWhatWasPassedOver) {
  AgreedOrder order = Order({4, 2, 7, 5});
  order.BeginForward(/*training=*/true, 1);
  order.ReachForward(2);
  EXPECT_THAT(forward_, ElementsAre(4));
  order.ReachForward(5);
  EXPECT_THAT(forward_, ElementsAre(4, 7));
  order.EndForward();
  EXPECT_THAT(forward_, ElementsAre(4, 7));
}

TEST_F(AgreedOrderTest, EndOfForwardJoinsTheRest) {
  AgreedOrder order = Order({4, 2, 7});
  Forward(order, {});
  EXPECT_THAT(forward_, ElementsAre(4, 2, 7));
  forward_.clear();
  Forward(order, {4});
  EXPECT_THAT(forward_, ElementsAre(2, 7));
  forward_.clear();
  Forward(order, {4, 2, 7});
  EXPECT_THAT(forward_, IsEmpty());
}

TEST_F(AgreedOrderTest, UnitsOutOfOrderOrTwiceAreErrors) {
  for (const int second : {0, 1}) {
    AgreedOrder order = Order({0, 1, 2});
    order.BeginForward(/*training=*/true, 1);
    order.ReachForward(1);
    EXPECT_THROWS_ERROR(order.ReachForward(second),
                        absl::StatusCode::kFailedPrecondition,
                        "a unit below a Experts that is marked "
                        "ranks_may_differ runs out of the order");
  }
}

TEST_F(AgreedOrderTest, BackwardJoinsFromTheLast) {
  AgreedOrder order = Order({4, 2, 7, 5});
  Forward(order, {4, 7});
  order.ReachBackward(7);
  EXPECT_THAT(backward_, ElementsAre(5));
  order.ReachBackward(4);
  EXPECT_THAT(backward_, ElementsAre(5, 2));
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(5, 2));
}

TEST_F(AgreedOrderTest, EndOfBackwardJoinsTheRestOnce) {
  AgreedOrder order = Order({4, 2, 7});
  Forward(order, {2});
  order.ReachBackward(2);
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(7, 4));
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(7, 4));
  EXPECT_FALSE(order.pending_backward());
}

// Recomputation reaches a unit in backward more than once.
TEST_F(AgreedOrderTest, ReachingAUnitAgainJoinsNothing) {
  AgreedOrder order = Order({0, 1, 2});
  Forward(order, {0, 1, 2});
  for (const int unit : {2, 2, 1, 2}) order.ReachBackward(unit);
  EXPECT_THAT(backward_, IsEmpty());
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(0));
}

TEST_F(AgreedOrderTest, ABackwardIsPendingForWorkFromBeforeTheModule) {
  AgreedOrder order = Order({0});
  EXPECT_FALSE(order.PendingAfter(0));
  Forward(order, {0}, /*now=*/10);
  EXPECT_TRUE(order.PendingAfter(9));
  EXPECT_FALSE(order.PendingAfter(10));
  order.EndBackward();
  EXPECT_FALSE(order.PendingAfter(9));
}

TEST_F(AgreedOrderTest, WithoutGradientsNoBackwardIsPending) {
  AgreedOrder order = Order({0, 1});
  Forward(order, {0}, /*now=*/1, /*training=*/false);
  EXPECT_THAT(forward_, ElementsAre(1));
  EXPECT_FALSE(order.pending_backward());
  order.EndBackward();
  EXPECT_THAT(backward_, IsEmpty());
}

TEST_F(AgreedOrderTest, AForwardWithoutGradientsLeavesTheOthersPending) {
  AgreedOrder order = Order({0, 1, 2});
  Forward(order, {1}, /*now=*/1);
  Forward(order, {}, /*now=*/2, /*training=*/false);
  order.ReachBackward(1);
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(2, 0));
  EXPECT_FALSE(order.pending_backward());
}

TEST_F(AgreedOrderTest, TwoForwardsHaveTwoBackwards) {
  AgreedOrder order = Order({0, 1});
  Forward(order, {0}, /*now=*/1);
  Forward(order, {1}, /*now=*/2);
  order.ReachBackward(0);
  EXPECT_TRUE(order.PendingAfter(1));
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(1));
  order.EndBackward();  // It has passed.
  order.BeginBackward();
  EXPECT_TRUE(order.PendingAfter(1));
  order.ReachBackward(1);
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(1, 0));
  EXPECT_FALSE(order.PendingAfter(0));
}

TEST_F(AgreedOrderTest, AForgottenStepJoinsNothing) {
  AgreedOrder order = Order({0, 1});
  Forward(order, {0, 1});
  order.BeginRecompute();
  order.Forget();
  EXPECT_FALSE(order.recomputing());
  order.EndBackward();
  EXPECT_THAT(backward_, IsEmpty());
  // The next step begins anew.
  Forward(order, {1});
  EXPECT_THAT(forward_, ElementsAre(0));
  order.EndBackward();
  EXPECT_THAT(backward_, ElementsAre(1, 0));
}

TEST_F(AgreedOrderTest, AModuleWithoutUnitsJoinsNothing) {
  AgreedOrder order = Order({});
  Forward(order, {});
  order.EndBackward();
  EXPECT_THAT(forward_, IsEmpty());
  EXPECT_THAT(backward_, IsEmpty());
}

// A backward may come back for the second of them.
TEST_F(AgreedOrderTest, UnitsAreHeldWhileTwoForwardsWait) {
  AgreedOrder order = Order({4, 2, 7});
  Forward(order, {2}, /*now=*/1);
  Forward(order, {7}, /*now=*/2);
  order.BeginBackward();
  EXPECT_TRUE(order.holds());
  order.ReachBackward(7);
  EXPECT_THAT(held_, ElementsAre(7, 2, 4));
  order.LeaveBackward();
  order.ReachBackward(2);
  EXPECT_THAT(finished_, IsEmpty());
  order.EndBackward();
  EXPECT_THAT(held_, ElementsAre(7, 2, 4));
  EXPECT_THAT(finished_, ElementsAre(7, 2, 4));
  EXPECT_THAT(backward_, IsEmpty());
}

TEST_F(AgreedOrderTest, ABackwardThatPassesByHoldsTheUnitsToo) {
  AgreedOrder order = Order({0, 1});
  Forward(order, {}, /*now=*/1);
  Forward(order, {}, /*now=*/2);
  order.BeginBackward();
  order.LeaveBackward();
  EXPECT_THAT(held_, ElementsAre(1, 0));
  order.EndBackward();
  EXPECT_THAT(finished_, ElementsAre(1, 0));
}

// What one backward took twice does not wait for another; a forward from behind
// it does.
TEST_F(AgreedOrderTest, AStepForgetsForwardsFromBeforeTheLastBackward) {
  AgreedOrder order = Order({0});
  Forward(order, {0}, /*now=*/1);
  Forward(order, {0}, /*now=*/2);
  order.BeginBackward();
  order.EndBackward();
  EXPECT_TRUE(order.PendingAfter(0) || order.holds());
  order.BeginStep();
  Forward(order, {0}, /*now=*/3);
  order.BeginStep();  // Between a forward and its backward.
  order.BeginBackward();
  EXPECT_FALSE(order.holds());
  EXPECT_TRUE(order.PendingAfter(2));
}

}  // namespace
}  // namespace tessera
