#include "fsdp/comm/short_slice.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ShortSliceTest, OfThisThreadAndThoseThatItStarts) {
  const int64_t before = TimeSlice();
  std::thread([&] {
    ASSERT_TRUE(AskForShortSlice());
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    const int64_t mine = TimeSlice();
    std::thread([&] { EXPECT_EQ(TimeSlice(), mine); }).join();
    if (before != 0) {
      EXPECT_LT(mine, before);
    }
  }).join();
  EXPECT_EQ(TimeSlice(), before);
}

// What somebody gave a policy of its own keeps it.
TEST(ShortSliceTest, LeavesOtherPoliciesAlone) {
  std::thread([] {
    const sched_param none = {};
    ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    EXPECT_FALSE(AskForShortSlice());
    EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
  }).join();
}

}  // namespace
}  // namespace tessera
