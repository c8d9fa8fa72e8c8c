// Training settles: from the third step on every step takes the same memory,
// and none of it is new.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

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

// Of an object whose alignment is `align`, from the start of its block.
size_t OffsetOf(std::align_val_t align) {
  return std::max(static_cast<size_t>(align), sizeof(Header));
}

}  // namespace

void* operator new(size_t size, std::align_val_t align) {
  const size_t offset = OffsetOf(align);
  const size_t block_bytes = (offset + size + offset - 1) / offset * offset;
  void* block = std::aligned_alloc(offset, block_bytes);
  if (block == nullptr) throw std::bad_alloc();
  char* data = static_cast<char*>(block) + offset;
  new (data - sizeof(Header)) Header{static_cast<int64_t>(size)};
  live_heap_bytes += static_cast<int64_t>(size);
  return data;
}
void operator delete(void* data, std::align_val_t align) noexcept {
  if (data == nullptr) return;
  char* object = static_cast<char*>(data);
  live_heap_bytes -=
      reinterpret_cast<Header*>(object - sizeof(Header))->num_bytes;
  std::free(object - OffsetOf(align));
}
void operator delete(void* data, size_t, std::align_val_t align) noexcept {
  operator delete(data, align);
}
void* operator new(size_t size) {
  return operator new (size, std::align_val_t{alignof(std::max_align_t)});
}
void operator delete(void* data) noexcept {
  operator delete (data, std::align_val_t{alignof(std::max_align_t)});
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

// What malloc has given out, to libraries too; 0 under a sanitizer. Blocks that
// threads keep for themselves count, and where they come to rest is chance: so
// not where ranks are threads.
int64_t MallocedBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }
constexpr double kSlackBytesOfMalloc = 64 << 10;

struct Settled {
  int64_t device_allocations = 0;
  int64_t heap_bytes = 0;
  int64_t malloced_bytes = 0;
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
      settled = {stats.num_device_allocations, 0, 0, stats.peak_by_category};
    }
    EXPECT_EQ(stats.peak_by_category, settled.peaks) << "step " << step;
    EXPECT_EQ(stats.num_device_allocations, settled.device_allocations)
        << "step " << step;
    if (step != kSettled && step != kLast) continue;
    meet.arrive_and_wait();
    const int64_t heap = LiveHeapBytes();
    const int64_t malloced = MallocedBytes();
    meet.arrive_and_wait();
    if (step == kSettled) {
      settled.heap_bytes = heap;
      settled.malloced_bytes = malloced;
    }
    if (num_ranks_here == 1) {
      EXPECT_NEAR(static_cast<double>(malloced),
                  static_cast<double>(settled.malloced_bytes),
                  kSlackBytesOfMalloc);
    }
    EXPECT_NEAR(static_cast<double>(heap),
                static_cast<double>(settled.heap_bytes),
                static_cast<double>(num_ranks_here * kSlackBytesOfRank));
  }
}

// MemoryCases; and those that gather among fewer ranks without the limiter.
std::vector<MemoryCase> SteadyCases(int world_size, bool bfloat16,
                                    bool one_memory) {
  std::vector<MemoryCase> cases =
      MemoryCases(world_size, bfloat16, one_memory, true);
  for (size_t i = 0, n = cases.size(); i < n; ++i) {
    if (bfloat16 || cases[i].plan.keeping != Keeping::kKeepsAmong) continue;
    MemoryCase unlimited = cases[i];
    unlimited.plan.name += " without a limit";
    unlimited.options.limit_all_gathers = false;
    cases.push_back(unlimited);
  }
  return cases;
}

void ExpectAllSettled(RankKind kind, const MemoryModel& model) {
  constexpr int kRanks = 4;
  const int num_ranks_here = kind == RankKind::kThread ? kRanks : 1;
  std::barrier<> meet(num_ranks_here);
  RunRanksAs(kind, kRanks, [&](const std::shared_ptr<Communicator>& world) {
    const bool threads = kind == RankKind::kThread;
    for (const bool bfloat16 : {false, true}) {
      if (bfloat16 && !threads) continue;
      for (const MemoryCase& test : SteadyCases(kRanks, bfloat16, !threads)) {
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
TEST(MemorySteadyTest, ProcessesWithATiedTableSettle) {
  ExpectAllSettled(RankKind::kSharedMemory, TinyGpt2());
}

TEST(MemorySteadyTest, TheHookSeesAnObject) {
  const int64_t before = LiveHeapBytes();
  const auto object = std::make_unique<std::array<char, 1000>>();
  EXPECT_GE(LiveHeapBytes(), before + 1000);
  struct alignas(256) Aligned {
    std::array<char, 1024> bytes;
  };
  const auto aligned = std::make_unique<Aligned>();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned.get()) % 256, 0u);
  EXPECT_GE(LiveHeapBytes(), before + 2024);
}

}  // namespace
}  // namespace tessera
