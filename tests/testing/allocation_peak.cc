#include "tests/testing/allocation_peak.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t live = live_bytes +=
      static_cast<int64_t>(malloc_usable_size(memory));
  int64_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void Uncounted(void* memory) {
  if (memory == nullptr) return;
  live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// All forms: a sanitizer has its own of those that are not replaced, and
// wants what one form gave back by the same.
void* operator new(size_t num_bytes) {
  return Counted(std::malloc(num_bytes > 0 ? num_bytes : 1));
}
void* operator new[](size_t num_bytes) { return operator new(num_bytes); }
void* operator new(size_t num_bytes, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(num_bytes > 0 ? num_bytes : 1);
  return memory == nullptr ? nullptr : Counted(memory);
}
void* operator new[](size_t num_bytes, const std::nothrow_t& tag) noexcept {
  return operator new(num_bytes, tag);
}
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  return Counted(std::aligned_alloc(align, (num_bytes + align - 1) & -align));
}
void* operator new[](size_t num_bytes, std::align_val_t alignment) {
  return operator new(num_bytes, alignment);
}
void operator delete(void* memory) noexcept { Uncounted(memory); }
void operator delete[](void* memory) noexcept { Uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { Uncounted(memory); }
void operator delete[](void* memory, size_t) noexcept { Uncounted(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  Uncounted(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  Uncounted(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  Uncounted(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  Uncounted(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  Uncounted(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  Uncounted(memory);
}

namespace tessera {

AllocationPeak::AllocationPeak() : start_(live_bytes) {
  peak_bytes = live_bytes.load();
}

int64_t AllocationPeak::bytes() const { return peak_bytes - start_; }

}  // namespace tessera
