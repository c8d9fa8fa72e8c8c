#include "fsdp/rate_limiter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace tessera {
namespace {

// A compute stream whose work ends when the test says so, and a gather on
// another stream.
class RateLimiterTest : public ::testing::Test {
 protected:
  // An event that passes when the promise is kept.
  Event Blocked(std::promise<void>& promise) {
    compute_.Enqueue("Wait",
                     [done = promise.get_future().share()] { done.wait(); });
    return compute_.Record();
  }
  // Queues a gather behind what the limiter makes it wait for.
  Event Gather(int64_t num_ahead) {
    limiter_.WaitBeforeGather(num_ahead, gathers_);
    gathers_.Enqueue("Gather", [this] { ++num_gathered_; });
    return gathers_.Record();
  }

  Stream compute_{CurrentDevice(), "compute", StreamMode::kQueued};
  Stream gathers_{CurrentDevice(), "gathers", StreamMode::kQueued};
  std::atomic<int> num_gathered_ = 0;
  RateLimiter limiter_;
};

TEST_F(RateLimiterTest, OneReleaseMayBeOutstanding) {
  std::promise<void> first;
  std::promise<void> second;
  limiter_.Release(Blocked(first));
  Gather(/*num_ahead=*/0).Synchronize();
  EXPECT_EQ(num_gathered_, 1);
  limiter_.Release(Blocked(second));
  const Event third = Gather(0);
  EXPECT_FALSE(third.Done());
  first.set_value();
  third.Synchronize();
  EXPECT_EQ(num_gathered_, 2);
  second.set_value();
}

TEST_F(RateLimiterTest, WhatIsGatheredAheadCounts) {
  std::promise<void> release;
  limiter_.Release(Blocked(release));
  const Event gather = Gather(/*num_ahead=*/1);
  EXPECT_FALSE(gather.Done());
  release.set_value();
  gather.Synchronize();
}

TEST_F(RateLimiterTest, ReleasesThatHavePassedCostNothing) {
  for (int i = 0; i < 5; ++i) limiter_.Release(compute_.Record());
  compute_.Synchronize();
  Gather(/*num_ahead=*/0).Synchronize();
  EXPECT_EQ(num_gathered_, 1);
}

TEST_F(RateLimiterTest, ClearForgetsReleases) {
  std::promise<void> release;
  limiter_.Release(Blocked(release));
  limiter_.Release(compute_.Record());
  limiter_.Clear();
  Gather(/*num_ahead=*/1).Synchronize();
  EXPECT_EQ(num_gathered_, 1);
  release.set_value();
}

}  // namespace
}  // namespace tessera
