// What the allocator counts, reuses, limits and keeps apart.
#include "runtime/device/allocator.h"

#include <gtest/gtest.h>

#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

TEST(Allocator, ReusesAndCounts) {
  Allocator allocator(CpuDevice(0));
  void* a = allocator.AllocateAs(100, MemoryCategory::kGradient);
  EXPECT_EQ(allocator.stats().current(MemoryCategory::kGradient), 128);
  EXPECT_EQ(allocator.stats().current_bytes, 128);
  allocator.Free(a);
  EXPECT_EQ(allocator.stats().current_bytes, 0);
  EXPECT_EQ(allocator.stats().reserved_bytes, 128);
  EXPECT_EQ(allocator.AllocateAs(128, MemoryCategory::kData), a);
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.num_allocations, 2);
  EXPECT_EQ(stats.num_device_allocations, 1);
  EXPECT_EQ(stats.peak(MemoryCategory::kGradient), 128);
  EXPECT_EQ(stats.peak(MemoryCategory::kData), 128);
  EXPECT_EQ(stats.peak_bytes, 128);
  allocator.Free(a);
}

TEST(Allocator, BlocksAreAlignedAndEmptyOnesDistinct) {
  Allocator allocator(CpuDevice(0));
  void* a = allocator.AllocateAs(0, MemoryCategory::kData);
  void* b = allocator.AllocateAs(0, MemoryCategory::kData);
  EXPECT_NE(a, b);
  for (const int64_t num_bytes : {1, 64, 65, 5 << 20}) {
    void* block = allocator.AllocateAs(num_bytes, MemoryCategory::kData);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % kAllocationAlignment, 0u);
    allocator.Free(block);
  }
  allocator.Free(a);
  allocator.Free(b);
}

// See [Note: scratch while others are queued].
TEST(Allocator, ScratchNeverTakesWhatTheHostGaveBack) {
  Allocator allocator(CpuDevice(0));
  void* tensor = allocator.AllocateAs(256, MemoryCategory::kActivation);
  allocator.Free(tensor);
  void* scratch = allocator.Allocate(256);
  EXPECT_NE(scratch, tensor);
  allocator.Free(scratch);
  EXPECT_EQ(allocator.Allocate(256), scratch) << "scratch reuses scratch";
  EXPECT_EQ(allocator.AllocateAs(256, MemoryCategory::kScratch), tensor);
  allocator.Free(scratch);
  allocator.Free(tensor);
}

TEST(Allocator, LimitIsEnforcedAndTheCacheGoesFirst) {
  Allocator allocator(CpuDevice(3));
  allocator.SetLimit(1024);
  void* a = allocator.AllocateAs(640, MemoryCategory::kParameter);
  allocator.Free(a);
  void* b = allocator.AllocateAs(960, MemoryCategory::kParameter);
  const absl::Status status =
      Try([&] { allocator.AllocateAs(65, MemoryCategory::kGradient); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  for (const char* part :
       {"cpu:3", "wanted 128 bytes for gradients", "960 of 1024",
        "parameters "
        "960"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  allocator.Free(b);
}

TEST(Allocator, InjectedFailureHitsTheNthRequestOnce) {
  Allocator allocator(CpuDevice(0));
  allocator.FailRequestForTest(2);
  void* a = allocator.AllocateAs(64, MemoryCategory::kData);
  EXPECT_FALSE(
      Try([&] { allocator.AllocateAs(64, MemoryCategory::kData); }).ok());
  void* b = allocator.AllocateAs(64, MemoryCategory::kData);
  allocator.Free(a);
  allocator.Free(b);
}

TEST(Allocator, ExternalMemoryCountsAgainstTheLimit) {
  Allocator allocator(CpuDevice(0));
  allocator.SetLimit(256);
  allocator.CountExternal(192, MemoryCategory::kUnsharded);
  EXPECT_EQ(allocator.stats().current(MemoryCategory::kUnsharded), 192);
  EXPECT_FALSE(
      Try([&] { allocator.AllocateAs(128, MemoryCategory::kData); }).ok());
  allocator.UncountExternal(192, MemoryCategory::kUnsharded);
  allocator.Free(allocator.AllocateAs(128, MemoryCategory::kData));
}

}  // namespace
}  // namespace tessera
