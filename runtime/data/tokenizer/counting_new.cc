#include "runtime/data/tokenizer/counting_new.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> live_bytes = 0;
std::atomic<size_t> peak_bytes = 0;

}  // namespace

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const size_t live = live_bytes += malloc_usable_size(memory);
  size_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace tessera {

size_t StartCountingPeak() {
  peak_bytes = live_bytes.load();
  return peak_bytes;
}

size_t PeakBytes() { return peak_bytes; }

}  // namespace tessera
