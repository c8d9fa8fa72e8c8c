// What a thread's device is, and what devices refuse.
#include "runtime/device/device.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(Device, GuardsNestAndBelongToTheThread) {
  EXPECT_EQ(CurrentDevice(), CpuDevice(0));
  {
    const DeviceGuard outer(CpuDevice(3));
    {
      const DeviceGuard inner(kMetaDevice);
      EXPECT_EQ(CurrentDevice(), kMetaDevice);
    }
    EXPECT_EQ(CurrentDevice(), CpuDevice(3));
    std::thread other([] { EXPECT_EQ(CurrentDevice(), CpuDevice(0)); });
    other.join();
  }
  EXPECT_EQ(CurrentDevice(), CpuDevice(0));
}

TEST(Device, EachHasItsOwnAllocatorStreamAndThreads) {
  EXPECT_NE(&AllocatorOf(CpuDevice(1)), &AllocatorOf(CpuDevice(2)));
  EXPECT_NE(&ComputeStream(CpuDevice(1)), &ComputeStream(CpuDevice(2)));
  SetNumThreads(CpuDevice(1), 7);
  SetNumThreads(CpuDevice(2), 5);
  EXPECT_EQ(NumThreads(CpuDevice(1)), 7);
  EXPECT_EQ(NumThreads(CpuDevice(2)), 5);
  EXPECT_THROWS_ERROR(SetNumThreads(CpuDevice(1), 0),
                      absl::StatusCode::kInvalidArgument,
                      "wanted at least 1 thread, got 0");
}

TEST(Device, AStreamGuardRedirectsItsDeviceOnly) {
  Stream side(CpuDevice(1), "side", StreamMode::kInline);
  {
    const StreamGuard guard(side);
    EXPECT_EQ(&CurrentStream(CpuDevice(1)), &side);
    EXPECT_EQ(&CurrentStream(CpuDevice(2)), &ComputeStream(CpuDevice(2)));
  }
  EXPECT_EQ(&CurrentStream(CpuDevice(1)), &ComputeStream(CpuDevice(1)));
}

TEST(Device, ChangingTheModeWaitsForWork) {
  const Device device = CpuDevice(1);
  SetComputeStreamMode(device, StreamMode::kQueued);
  EXPECT_EQ(ComputeStreamMode(device), StreamMode::kQueued);
  bool done = false;
  ComputeStream(device).Enqueue("Slow", [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  SetComputeStreamMode(device, StreamMode::kInline);
  EXPECT_TRUE(done);
  EXPECT_EQ(ComputeStreamMode(device), StreamMode::kInline);
}

TEST(Device, WhatIsNoDeviceOfThisProcessIsRefused) {
  EXPECT_THROWS_ERROR(AllocatorOf(kMetaDevice),
                      absl::StatusCode::kInvalidArgument, "has no memory");
  EXPECT_THROWS_ERROR(AllocatorOf({DeviceType::kCuda, 1}),
                      absl::StatusCode::kUnimplemented,
                      "cuda:1: built without CUDA; use a CPU device");
  for (const int index : {-1, kMaxCpuDevices}) {
    EXPECT_THROWS_ERROR(AllocatorOf(CpuDevice(index)),
                        absl::StatusCode::kInvalidArgument,
                        "wanted cpu:0 to cpu:63, got cpu:");
  }
}

TEST(Device, NamesAreShort) {
  EXPECT_EQ(CpuDevice(2).ToString(), "cpu:2");
  EXPECT_EQ((Device{DeviceType::kCuda, 1}).ToString(), "cuda:1");
  EXPECT_EQ(kMetaDevice.ToString(), "meta");
}

}  // namespace
}  // namespace tessera
