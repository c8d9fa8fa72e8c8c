#include "fsdp/slot_pool.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "fsdp/comm/thread_communicator.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"
#include "runtime/tensor/tensor.h"

namespace tessera {
namespace {

constexpr int64_t kBytes = 1 << 16;

SlotPool::Options OptionsFor(Communicator* communicator) {
  SlotPool::Options options;
  options.communicator = communicator;
  options.device = CurrentDevice();
  return options;
}

TEST(SlotPoolTest, SlotsAreTakenInTheOrderTheyWereFreed) {
  SlotPool pool(OptionsFor(nullptr));
  Slot* a = pool.Take(kBytes);
  Slot* b = pool.Take(kBytes);
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.num_slots(), 2);
  pool.GiveBack(b, Event());
  pool.GiveBack(a, Event());
  EXPECT_NE(pool.Take(2 * kBytes), b);
  EXPECT_NE(pool.Take(kBytes, /*key=*/1), b);
  EXPECT_EQ(pool.Take(kBytes), b);
  EXPECT_EQ(pool.Take(kBytes), a);
  EXPECT_EQ(pool.num_slots(), 4);
}

TEST(SlotPoolTest, ReleasesOnlyWhatNobodyHolds) {
  SlotPool pool(OptionsFor(nullptr));
  const int64_t before = AllocatorOf(CurrentDevice()).stats().current_bytes;
  Slot* held = pool.Take(kBytes);
  pool.GiveBack(pool.Take(kBytes), Event());
  pool.ReleaseFree();
  EXPECT_EQ(pool.num_slots(), 1);
  EXPECT_EQ(AllocatorOf(CurrentDevice()).stats().current_bytes,
            before + kBytes);
  EXPECT_NE(pool.Take(kBytes), held);
  EXPECT_EQ(pool.num_slots(), 2);
}

// Ranks that failed at different places agree again on who is next.
TEST(SlotPoolTest, TakesBackAllInTheOrderTheyWereMade) {
  SlotPool pool(OptionsFor(nullptr));
  Slot* a = pool.Take(kBytes);
  Slot* b = pool.Take(kBytes);
  Slot* c = pool.Take(kBytes, /*key=*/1);
  pool.GiveBack(b, Event());
  pool.TakeBackAll();
  EXPECT_EQ(pool.Take(kBytes), a);
  EXPECT_EQ(pool.Take(kBytes), b);
  EXPECT_EQ(pool.Take(kBytes, /*key=*/1), c);
  EXPECT_EQ(pool.num_slots(), 3);
}

// Whoever still reads it, or takes it and does not write all of it, is noticed.
TEST(SlotPoolTest, WhatIsGivenBackBehindAStreamIsPoisoned) {
  for (const bool poison : {false, true}) {
    AllocatorOf(CurrentDevice()).SetPoison(poison);
    SlotPool pool(OptionsFor(nullptr));
    Slot* slot = pool.Take(kBytes);
    const Tensor bytes = slot->Vector(kBytes, DType::kUInt8);
    ops::Fill(bytes, 1.0);
    Stream stream(CurrentDevice(), "last", StreamMode::kQueued);
    pool.GiveBack(slot, stream);
    EXPECT_EQ(slot, nullptr);
    pool.GiveBack(slot, stream);
    Slot* again = pool.Take(kBytes);
    ComputeStream(CurrentDevice()).WaitFor(again->free);
    EXPECT_EQ(bytes.ToVector<uint8_t>()[0], poison ? 0xFF : 1);
    EXPECT_EQ(pool.num_slots(), 1);
    AllocatorOf(CurrentDevice()).SetPoison(false);
  }
}

// The memory of a slot may be a block that the host gave back while work on it
// is still queued. Whatever stream writes the slot next, that work is over.
TEST(SlotPoolTest, WorkQueuedOnTheMemoryIsOverWhenASlotIsMade) {
  const Device device = CurrentDevice();
  const auto world = MakeThreadCommunicators(1);
  for (Communicator* communicator : {world[0].get(), (Communicator*)nullptr}) {
    for (const bool poison : {false, true}) {
      AllocatorOf(device).SetPoison(poison);
      SetComputeStreamMode(device, StreamMode::kQueued);
      Stream other(device, "other", StreamMode::kQueued);
      {
        const Tensor before = ops::Zeros({kBytes}, {DType::kUInt8, device});
        ComputeStream(device).Enqueue(
            "Sleep", [] { absl::SleepFor(absl::Milliseconds(20)); });
        ops::Fill(before, 1.0);
      }
      SlotPool pool(OptionsFor(communicator));
      Slot* slot = pool.Take(kBytes);
      const Tensor whole =
          Tensor::View(slot->memory, 0, {kBytes}, DType::kUInt8);
      {
        StreamGuard guard(other);
        ops::Fill(whole, 7.0);
      }
      other.Synchronize();
      EXPECT_EQ(whole.ToVector<uint8_t>(), std::vector<uint8_t>(kBytes, 7));
      SetComputeStreamMode(device, StreamMode::kInline);
      AllocatorOf(device).SetPoison(false);
    }
  }
}

}  // namespace
}  // namespace tessera
