#include "runtime/device/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

thread_local MemoryCategory current_category = MemoryCategory::kActivation;

// From here on blocks are mapped one by one, so that giving one back gives the
// memory back.
constexpr int64_t kMappedBytes = int64_t{1} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;

void* NewBlock(int64_t num_bytes) {
  if (num_bytes < kMappedBytes) {
    return std::aligned_alloc(kAllocationAlignment, num_bytes);
  }
  void* data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (num_bytes >= 2 * kHugePage) madvise(data, num_bytes, MADV_HUGEPAGE);
  return data;
}

void DeleteBlock(void* data, int64_t num_bytes) {
  if (num_bytes < kMappedBytes) {
    std::free(data);
  } else {
    munmap(data, num_bytes);
  }
}

std::string CategoriesText(const MemoryStats& stats) {
  std::string text;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    if (stats.current_by_category[c] == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    MemoryCategoryName(static_cast<MemoryCategory>(c)), " ",
                    stats.current_by_category[c]);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

const char* MemoryCategoryName(MemoryCategory category) {
  static constexpr std::array<const char*, kNumMemoryCategories> kNames = {
      "parameters",
      "gradients",
      "optimizer state",
      "unsharded parameters",
      "unsharded gradients",
      "activations",
      "scratch",
      "data"};
  return kNames[static_cast<int>(category)];
}

MemoryCategoryGuard::MemoryCategoryGuard(MemoryCategory category)
    : previous_(current_category) {
  current_category = category;
}
MemoryCategoryGuard::~MemoryCategoryGuard() { current_category = previous_; }
MemoryCategory CurrentMemoryCategory() { return current_category; }

Allocator::~Allocator() { ReleaseCache(); }

void Allocator::Count(int64_t num_bytes, MemoryCategory category) {
  const int c = static_cast<int>(category);
  stats_.current_bytes += num_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
  stats_.current_by_category[c] += num_bytes;
  stats_.peak_by_category[c] =
      std::max(stats_.peak_by_category[c], stats_.current_by_category[c]);
}

void Allocator::CheckLimit(int64_t num_bytes, MemoryCategory category) {
  const bool injected = fail_in_ > 0 && --fail_in_ == 0;
  if (PassesLimit(num_bytes)) DeleteBlocks(cached_scratch_);
  const bool over = PassesLimit(num_bytes);
  if (!injected && !over) return;
  throw Error(absl::ResourceExhaustedError(absl::StrCat(
      device_.ToString(), ": out of memory: wanted ", num_bytes, " bytes for ",
      MemoryCategoryName(category), ", in use are ", stats_.current_bytes,
      " of ", limit_bytes_ > 0 ? absl::StrCat(limit_bytes_) : "unlimited",
      " bytes (", CategoriesText(stats_),
      "); use a smaller batch, more ranks, smaller units or a strategy that "
      "shards more")));
}

bool Allocator::HasCached(int64_t num_bytes) const {
  std::lock_guard lock(mutex_);
  const auto it = cached_.lower_bound(num_bytes);
  return it != cached_.end() && it->first <= num_bytes + num_bytes / 8;
}

bool Allocator::PassesLimit(int64_t num_bytes) const {
  return limit_bytes_ > 0 && stats_.reserved_bytes + num_bytes > limit_bytes_;
}

// Cached blocks go back to the system when the limit is near; queued work may
// still use them, so it ends first. Not for scratch, which that work takes.
void Allocator::MakeRoom(int64_t num_bytes) {
  {
    std::lock_guard lock(mutex_);
    if (!PassesLimit(num_bytes)) return;
  }
  ComputeStream(device_).Synchronize();
  std::lock_guard lock(mutex_);
  DeleteBlocks(cached_);
}

void* Allocator::TakeCached(Cache& cache, int64_t num_bytes,
                            int64_t* block_bytes) {
  auto it = cache.lower_bound(num_bytes);
  // A block much larger than asked for would be memory lost to the others.
  if (it == cache.end() || it->first > num_bytes + num_bytes / 8) {
    return nullptr;
  }
  *block_bytes = it->first;
  void* data = it->second;
  cache.erase(it);
  return data;
}

void* Allocator::Take(int64_t num_bytes, MemoryCategory category,
                      bool scratch) {
  const int64_t counted =
      RoundUpAllocation(std::max<int64_t>(num_bytes, kAllocationAlignment));
  int64_t block_bytes = counted;
  void* data = nullptr;
  if (!scratch && !HasCached(counted)) MakeRoom(counted);
  {
    std::lock_guard lock(mutex_);
    Cache& cache = scratch ? cached_scratch_ : cached_;
    if (fail_in_ != 1) data = TakeCached(cache, counted, &block_bytes);
    if (data != nullptr && fail_in_ > 0) --fail_in_;
    if (data == nullptr) {
      CheckLimit(counted, category);
      data = NewBlock(counted);
      if (data == nullptr) {
        throw Error(absl::ResourceExhaustedError(absl::StrCat(
            device_.ToString(), ": the system refused ", counted, " bytes")));
      }
      stats_.reserved_bytes += counted;
      stats_.peak_reserved_bytes =
          std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
      ++stats_.num_device_allocations;
    }
    ++stats_.num_allocations;
    Count(counted, category);
    live_[data] = Block{block_bytes, counted, category, scratch};
  }
  return data;
}

void Allocator::Free(void* data) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(data);
  TESSERA_CHECK(it != live_.end());
  const Block block = it->second;
  live_.erase(it);
  Count(-block.counted_bytes, block.category);
  (block.scratch ? cached_scratch_ : cached_).emplace(block.num_bytes, data);
}

void Allocator::CountExternal(int64_t num_bytes, MemoryCategory category) {
  MakeRoom(num_bytes);
  std::lock_guard lock(mutex_);
  CheckLimit(num_bytes, category);
  stats_.reserved_bytes += num_bytes;
  stats_.peak_reserved_bytes =
      std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  ++stats_.num_device_allocations;
  Count(num_bytes, category);
}

void Allocator::UncountExternal(int64_t num_bytes, MemoryCategory category) {
  std::lock_guard lock(mutex_);
  stats_.reserved_bytes -= num_bytes;
  Count(-num_bytes, category);
}

MemoryStats Allocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::ResetPeak() {
  std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.current_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
  stats_.peak_by_category = stats_.current_by_category;
}

void Allocator::SetLimit(int64_t num_bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = num_bytes;
}

void Allocator::SetPoison(bool poison) {
  std::lock_guard lock(mutex_);
  poison_ = poison;
}

bool Allocator::poison() const {
  std::lock_guard lock(mutex_);
  return poison_;
}

void Allocator::DeleteBlocks(Cache& cache) {
  for (const auto& [num_bytes, data] : cache) {
    DeleteBlock(data, num_bytes);
    stats_.reserved_bytes -= num_bytes;
  }
  cache.clear();
}

void Allocator::ReleaseCache() {
  std::lock_guard lock(mutex_);
  DeleteBlocks(cached_);
  DeleteBlocks(cached_scratch_);
}

void Allocator::FailRequestForTest(int64_t n) {
  std::lock_guard lock(mutex_);
  fail_in_ = n;
}

}  // namespace tessera
