#include "kernels/stream_copy.h"

#include <cstddef>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

namespace tessera {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Less than this stays in the cache of a core until it is read.
constexpr int64_t kSmallBytes = 256 << 10;

// Copies whole blocks of two vectors, and returns how many bytes that were.
// `to` is aligned.
int64_t CopyBlocks(uint8_t* to, const uint8_t* from, int64_t num_bytes) {
  const hn::ScalableTag<uint8_t> d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  int64_t at = 0;
  for (; at + 2 * step <= num_bytes; at += 2 * step) {
    const auto first = hn::LoadU(d, from + at);
    const auto second = hn::LoadU(d, from + at + step);
    hn::Stream(first, d, to + at);
    hn::Stream(second, d, to + at + step);
  }
  // Such writes are in no order with others until this.
  hwy::FlushStream();
  return at;
}

}  // namespace

void StreamCopy(void* to, const void* from, int64_t num_bytes) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  if (num_bytes >= kSmallBytes) {
    constexpr uintptr_t kLine = 64;
    const auto head = static_cast<int64_t>(
        -reinterpret_cast<uintptr_t>(target) & (kLine - 1));
    std::memcpy(target, source, head);
    const int64_t done =
        head + CopyBlocks(target + head, source + head, num_bytes - head);
    target += done;
    source += done;
    num_bytes -= done;
  }
  if (num_bytes > 0) std::memcpy(target, source, num_bytes);
}

}  // namespace tessera
