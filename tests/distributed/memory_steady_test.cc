// Training settles: from the third step on every step takes the same memory,
// and none of it is new.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/device/allocator.h"
#include "tests/distributed/memory_run.h"
#include "tests/testing/run_ranks.h"

namespace {

std::atomic<int64_t> live_heap_bytes = 0;

// In front of each object of the heap, and as aligned as malloc's memory is.
struct alignas(std::max_align_t) Header {
  int64_t num_bytes;
};

}  // namespace

void* operator new(size_t size) {
  void* block = std::malloc(sizeof(Header) + size);
  if (block == nullptr) throw std::bad_alloc();
  auto* header = new (block) Header{static_cast<int64_t>(size)};
  live_heap_bytes += header->num_bytes;
  return header + 1;
}
void operator delete(void* data) noexcept {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  live_heap_bytes -= header->num_bytes;
  std::free(header);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }

namespace tessera {
namespace {

constexpr int kSettled = 3;
constexpr int kLast = 50;
// A rank's streams queue work in queues. Whether a step ends in the middle of a
// block of one (512 bytes) differs from step to step, and the table of blocks
// grows with the longest queue that has been. One object a step would be more.
constexpr int64_t kSlackBytesOfRank = 1024;

// Objects of the host, of all ranks that are threads of this process. Workers
// of streams may still be letting go of the last step's work, so this waits
// until the number stands still.
int64_t LiveHeapBytes() {
  int64_t before = -1;
  int64_t now = live_heap_bytes;
  for (int i = 0; i < 100 && before != now; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    before = now;
    now = live_heap_bytes;
  }
  return now;
}

struct Settled {
  int64_t device_allocations = 0;
  int64_t heap_bytes = 0;
  std::array<int64_t, kNumMemoryCategories> peaks = {};
};

// `meet` is where all ranks of this process wait for each other.
void ExpectSettled(const MemoryModel& model, const MemoryCase& test,
                   const std::shared_ptr<Communicator>& world,
                   int num_ranks_here, std::barrier<>& meet) {
  MemoryRun run(model, test, world);
  Settled settled;
  for (int step = 1; step <= kLast; ++step) {
    AllocatorOf(CurrentDevice()).ResetPeak();
    run.Step();
    if (step < kSettled) continue;
    const MemoryStats stats = StatsNow();
    if (step == kSettled) {
      settled = {stats.num_device_allocations, 0, stats.peak_by_category};
    }
    EXPECT_EQ(stats.peak_by_category, settled.peaks) << "step " << step;
    EXPECT_EQ(stats.num_device_allocations, settled.device_allocations)
        << "step " << step;
    if (step != kSettled && step != kLast) continue;
    meet.arrive_and_wait();
    const int64_t heap = LiveHeapBytes();
    meet.arrive_and_wait();
    if (step == kSettled) settled.heap_bytes = heap;
    EXPECT_NEAR(static_cast<double>(heap),
                static_cast<double>(settled.heap_bytes),
                static_cast<double>(num_ranks_here * kSlackBytesOfRank));
  }
}

void ExpectAllSettled(RankKind kind, const MemoryModel& model) {
  constexpr int kRanks = 4;
  const int num_ranks_here = kind == RankKind::kThread ? kRanks : 1;
  std::barrier<> meet(num_ranks_here);
  RunRanksAs(kind, kRanks, [&](const std::shared_ptr<Communicator>& world) {
    const bool threads = kind == RankKind::kThread;
    for (const bool bfloat16 : {false, true}) {
      if (bfloat16 && !threads) continue;
      for (const MemoryCase& test :
           MemoryCases(kRanks, bfloat16, !threads, true)) {
        SCOPED_TRACE(absl::StrCat(test.plan.name, ", rank ", world->rank(),
                                  bfloat16 ? ", bfloat16" : ", float32"));
        ExpectSettled(model, test, world, num_ranks_here, meet);
      }
    }
  });
}

// MEM-03
TEST(MemorySteadyTest, ThreadsSettle) {
  ExpectAllSettled(RankKind::kThread, UnevenModel());
}
TEST(MemorySteadyTest, ProcessesSettle) {
  ExpectAllSettled(RankKind::kSharedMemory, TinyLlama());
}

TEST(MemorySteadyTest, TheHookSeesAnObject) {
  const int64_t before = LiveHeapBytes();
  const auto object = std::make_unique<std::array<char, 1000>>();
  EXPECT_GE(LiveHeapBytes(), before + 1000);
}

}  // namespace
}  // namespace tessera
