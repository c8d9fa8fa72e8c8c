// Memory of one device: a caching allocator with statistics and a limit.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/kernel.h"
#include "runtime/device/device.h"

namespace tessera {

// What a block is used for, as the statistics report it.
enum class MemoryCategory : uint8_t {
  kParameter,       // Parameters, or the shards of them that a rank keeps.
  kGradient,        // Gradients, or the shards of them.
  kOptimizerState,  // Moments, master weights.
  kUnsharded,       // Gathered parameters.
  kUnshardedGradient,
  kActivation,  // All that forward keeps for backward, and intermediate values.
  kScratch,     // Working memory of kernels and collectives.
  kData,        // Batches, buffers, the rest.
};
inline constexpr int kNumMemoryCategories = 8;
const char* MemoryCategoryName(MemoryCategory category);

// New tensors of this thread are counted under `category` for a scope.
// Outside any scope: kActivation.
class MemoryCategoryGuard {
 public:
  explicit MemoryCategoryGuard(MemoryCategory category);
  ~MemoryCategoryGuard();
  MemoryCategoryGuard(const MemoryCategoryGuard&) = delete;
  MemoryCategoryGuard& operator=(const MemoryCategoryGuard&) = delete;

 private:
  MemoryCategory previous_;
};
MemoryCategory CurrentMemoryCategory();

// Sizes are rounded up to this many bytes, and blocks aligned to it.
inline constexpr int64_t kAllocationAlignment = 64;
constexpr int64_t RoundUpAllocation(int64_t num_bytes) {
  return (num_bytes + kAllocationAlignment - 1) / kAllocationAlignment *
         kAllocationAlignment;
}

// Bytes are rounded sizes of live blocks; `reserved` also counts the cache.
struct MemoryStats {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  int64_t num_allocations = 0;         // Requests served, from cache or not.
  int64_t num_device_allocations = 0;  // Requests that took new memory.
  std::array<int64_t, kNumMemoryCategories> current_by_category = {};
  std::array<int64_t, kNumMemoryCategories> peak_by_category = {};

  int64_t current(MemoryCategory c) const {
    return current_by_category[static_cast<int>(c)];
  }
  int64_t peak(MemoryCategory c) const {
    return peak_by_category[static_cast<int>(c)];
  }
};

// Blocks are handed out and taken back in the order of the device's compute
// stream: a block freed by the host may be given out again at once, because
// the work that used it was queued before the work that will.
// [Note: buffers that two streams use] A buffer that another stream touches
// must be kept alive until the compute stream has waited for that stream.
//
// Thread-safe. Never blocks on a stream.
class Allocator final : public Scratch {
 public:
  explicit Allocator(Device device) : device_(device) {}
  ~Allocator() override;

  // Throws Error(kResourceExhausted) with the sizes, by category, when the
  // limit would be passed. A request of 0 bytes gives a valid, unique pointer.
  void* AllocateAs(int64_t num_bytes, MemoryCategory category) {
    return Take(num_bytes, category, /*scratch=*/false);
  }
  void Free(void* data) override;

  // Scratch of kernels.
  //
  // [Note: scratch while others are queued] A kernel asks for it when it runs,
  // while the host has given blocks back that kernels further down the queue
  // still use. Scratch therefore has a cache of its own, of blocks that were
  // given back by kernels that have run.
  void* Allocate(int64_t num_bytes) override {
    return Take(num_bytes, MemoryCategory::kScratch, /*scratch=*/true);
  }

  // Counts memory that came from elsewhere (a mapping that ranks share),
  // against the limit too. Throws as AllocateAs.
  void CountExternal(int64_t num_bytes, MemoryCategory category);
  void UncountExternal(int64_t num_bytes, MemoryCategory category);

  MemoryStats stats() const;
  // Peaks restart from the current values.
  void ResetPeak();

  // Upper bound of reserved bytes; 0 is none. Cached blocks are returned to
  // the system before a request is refused.
  void SetLimit(int64_t num_bytes);
  // Whether storages fill fresh and released memory with 0xFF bytes (NaN in
  // every float type), in the order of the compute stream; for tests.
  void SetPoison(bool poison);
  bool poison() const;
  // Returns all cached blocks to the system; while no queued work uses them.
  void ReleaseCache();
  // The n-th coming request fails as if memory had run out; for tests.
  void FailRequestForTest(int64_t n);

 private:
  struct Block {
    int64_t num_bytes;      // Of the block.
    int64_t counted_bytes;  // Of the request, rounded.
    MemoryCategory category;
    bool scratch;  // See [Note: scratch while others are queued].
  };
  // Keyed by block size.
  using Cache = std::multimap<int64_t, void*>;
  void* Take(int64_t num_bytes, MemoryCategory category, bool scratch);
  void Count(int64_t num_bytes, MemoryCategory category);
  void CheckLimit(int64_t num_bytes, MemoryCategory category);
  static void* TakeCached(Cache& cache, int64_t num_bytes,
                          int64_t* block_bytes);
  bool PassesLimit(int64_t num_bytes) const;
  bool HasCached(int64_t num_bytes) const;
  void MakeRoom(int64_t num_bytes);
  void DeleteBlocks(Cache& cache);

  const Device device_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  int64_t limit_bytes_ = 0;
  int64_t fail_in_ = 0;
  bool poison_ = false;
  std::unordered_map<void*, Block> live_;
  Cache cached_;
  Cache cached_scratch_;
};

}  // namespace tessera
