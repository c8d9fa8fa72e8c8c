// Order, events and errors of streams, inline and queued.
#include "runtime/device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;

constexpr StreamMode kModes[] = {StreamMode::kInline, StreamMode::kQueued};

// Work that ends when the test says so.
class Gate {
 public:
  std::function<void()> Work() {
    return [opened = opened_] { opened.wait(); };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(Stream, RunsWorkInOrder) {
  for (const StreamMode mode : kModes) {
    Stream stream(CpuDevice(), "a", mode);
    std::vector<int> order;
    for (int i = 0; i < 5; ++i) {
      stream.Enqueue("Append", [&order, i] { order.push_back(i); });
    }
    stream.Synchronize();
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
  }
}

TEST(Stream, OnlyAQueuedOneLetsItsCallerRunAhead) {
  Stream stream(CpuDevice(), "a", StreamMode::kQueued);
  Gate gate;
  stream.Enqueue("Gate", gate.Work());
  const Event event = stream.Record();
  EXPECT_FALSE(event.Done());
  gate.Open();
  event.Synchronize();
  EXPECT_TRUE(event.Done());
  Stream inline_stream(CpuDevice(), "b", StreamMode::kInline);
  bool done = false;
  inline_stream.Enqueue("Now", [&] { done = true; });
  EXPECT_TRUE(done);
  EXPECT_TRUE(inline_stream.Record().Done());
}

TEST(Stream, WorkRunsOnTheStreamsDevice) {
  Stream stream(CpuDevice(2), "a", StreamMode::kQueued);
  Device device;
  stream.Enqueue("Device", [&] { device = CurrentDevice(); });
  stream.Synchronize();
  EXPECT_EQ(device, CpuDevice(2));
}

TEST(Stream, LaterWorkWaitsForAnEventOfAnother) {
  Stream first(CpuDevice(), "first", StreamMode::kQueued);
  Stream second(CpuDevice(), "second", StreamMode::kQueued);
  Gate gate;
  std::atomic<bool> ready = false;
  bool seen = false;
  first.Enqueue("Gate", gate.Work());
  first.Enqueue("Write", [&] { ready = true; });
  second.WaitFor(first.Record());
  second.Enqueue("Read", [&] { seen = ready; });
  gate.Open();
  second.Synchronize();
  EXPECT_TRUE(seen);
}

TEST(Stream, AnEventCoversWorkBeforeItOnly) {
  Stream stream(CpuDevice(), "a", StreamMode::kQueued);
  Gate gate;
  stream.Enqueue("Nothing", [] {});
  const Event before = stream.Record();
  stream.Enqueue("Gate", gate.Work());
  before.Synchronize();
  EXPECT_TRUE(before.Done());
  EXPECT_FALSE(stream.Record().Done());
  gate.Open();
}

TEST(Stream, AnEmptyEventHasHappened) {
  const Event event;
  EXPECT_TRUE(event.Done());
  event.Synchronize();
  for (const StreamMode mode : kModes) {
    Stream stream(CpuDevice(), "a", mode);
    stream.WaitFor(event);
    stream.Synchronize();
  }
}

void Fail() { throw Error(absl::InternalError("broken")); }

TEST(Stream, AnErrorDropsTheRestAndIsThrownOnce) {
  Stream stream(CpuDevice(), "a", StreamMode::kQueued);
  bool ran = false;
  stream.Enqueue("Gelu", Fail);
  stream.Enqueue("Add", [&] { ran = true; });
  EXPECT_THROWS_ERROR(stream.Synchronize(), absl::StatusCode::kInternal,
                      "Gelu: broken");
  EXPECT_FALSE(ran);
  // Usable again.
  stream.Enqueue("Add", [&] { ran = true; });
  stream.Synchronize();
  EXPECT_TRUE(ran);
}

TEST(Stream, AnErrorGoesToWhoeverWaitsForALaterEvent) {
  Stream failing(CpuDevice(), "a", StreamMode::kQueued);
  Stream waiting(CpuDevice(), "b", StreamMode::kQueued);
  const Event before = failing.Record();
  failing.Enqueue("Gelu", Fail);
  const Event after = failing.Record();
  before.Synchronize();
  EXPECT_THROWS_ERROR(after.Synchronize(), absl::StatusCode::kInternal,
                      "Gelu: broken");
  waiting.WaitFor(after);
  EXPECT_THROWS_ERROR(waiting.Synchronize(), absl::StatusCode::kInternal,
                      "broken");
  Stream inline_stream(CpuDevice(), "c", StreamMode::kInline);
  EXPECT_THROWS_ERROR(inline_stream.WaitFor(after), absl::StatusCode::kInternal,
                      "broken");
}

TEST(Stream, InlineErrorsReachTheCaller) {
  Stream stream(CpuDevice(), "a", StreamMode::kInline);
  EXPECT_THROWS_ERROR(stream.Enqueue("Gelu", Fail), absl::StatusCode::kInternal,
                      "broken");
  stream.Synchronize();
}

TEST(Stream, ForeignExceptionsBecomeErrors) {
  Stream stream(CpuDevice(), "a", StreamMode::kQueued);
  stream.Enqueue("Gelu", [] { throw std::runtime_error("odd"); });
  EXPECT_THROWS_ERROR(stream.Synchronize(), absl::StatusCode::kInternal, "odd");
}

TEST(Stream, TheEndWaitsForQueuedWork) {
  std::atomic<int> count = 0;
  {
    Stream stream(CpuDevice(), "a", StreamMode::kQueued);
    for (int i = 0; i < 100; ++i) stream.Enqueue("Count", [&] { ++count; });
  }
  EXPECT_THAT(count.load(), Eq(100));
}

// What work owns is gone when the stream is known to be idle.
TEST(Stream, WorkIsDestroyedBeforeAnyoneIsTold) {
  Stream stream(CpuDevice(), "a", StreamMode::kQueued);
  for (int i = 0; i < 100; ++i) {
    auto owned = std::make_shared<int>(i);
    const std::weak_ptr<int> alive = owned;
    stream.Enqueue("Own", [owned = std::move(owned)] {});
    stream.Synchronize();
    EXPECT_TRUE(alive.expired());
  }
}

}  // namespace
}  // namespace tessera
