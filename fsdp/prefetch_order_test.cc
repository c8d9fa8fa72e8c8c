#include "fsdp/prefetch_order.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(PrefetchOrderTest, ForwardFollowsTheFirstIteration) {
  PrefetchOrder order;
  EXPECT_FALSE(order.knows_forward());
  EXPECT_EQ(order.AfterInForward(3), std::nullopt);
  order.set_forward({3, 1, 2});
  EXPECT_TRUE(order.knows_forward());
  for (int iteration = 0; iteration < 2; ++iteration) {
    order.BeginIteration();
    EXPECT_EQ(order.AfterInForward(3), 1);
    EXPECT_EQ(order.AfterInForward(1), 2);
    EXPECT_EQ(order.AfterInForward(2), std::nullopt);
  }
}

TEST(PrefetchOrderTest, ForwardNeverLooksBack) {
  PrefetchOrder order;
  order.set_forward({0, 1, 2});
  order.BeginIteration();
  EXPECT_EQ(order.AfterInForward(1), 2);
  // A unit that runs again, or one that the first iteration did not run.
  EXPECT_EQ(order.AfterInForward(0), std::nullopt);
  EXPECT_EQ(order.AfterInForward(7), std::nullopt);
  EXPECT_EQ(order.AfterInForward(1), 2);
}

TEST(PrefetchOrderTest, BackwardGoesTheWayOfThisForwardBack) {
  PrefetchOrder order;
  order.BeginIteration();
  for (const int unit : {4, 2, 2, 5}) order.Ran(unit);
  EXPECT_EQ(order.BeforeInBackward(5), 2);
  EXPECT_EQ(order.BeforeInBackward(2), 2);  // Its earlier call.
  EXPECT_EQ(order.BeforeInBackward(2), 4);
  EXPECT_EQ(order.BeforeInBackward(4), std::nullopt);
}

TEST(PrefetchOrderTest, BackwardSkipsUnitsWithoutGradients) {
  PrefetchOrder order;
  order.BeginIteration();
  for (const int unit : {0, 1, 2, 3}) order.Ran(unit);
  EXPECT_EQ(order.BeforeInBackward(2), 1);  // 3 was frozen.
  EXPECT_EQ(order.BeforeInBackward(3), std::nullopt);
  EXPECT_EQ(order.BeforeInBackward(1), 0);
}

TEST(PrefetchOrderTest, BackwardForgetsAtItsEnd) {
  PrefetchOrder order;
  order.BeginIteration();
  for (const int unit : {0, 1}) order.Ran(unit);
  EXPECT_EQ(order.BeforeInBackward(1), 0);
  order.EndBackward();
  EXPECT_EQ(order.BeforeInBackward(1), std::nullopt);
  for (const int unit : {6, 1}) order.Ran(unit);
  EXPECT_EQ(order.BeforeInBackward(1), 6);
}

}  // namespace
}  // namespace tessera
