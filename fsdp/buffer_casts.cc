#include "fsdp/buffer_casts.h"

#include <utility>

#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

void BufferCasts::Add(Variable buffer, DType dtype) {
  MemoryCategoryGuard guard(MemoryCategory::kData);
  const Tensor own = buffer.data();
  const Tensor narrow = ops::Cast(own, dtype);
  buffer.set_data(narrow);
  entries_.push_back(
      {std::move(buffer), narrow, own, narrow.storage()->version()});
}

void BufferCasts::ShowOwnTypes(bool own) {
  if (std::exchange(own_, own) == own) return;
  MemoryCategoryGuard guard(MemoryCategory::kData);
  for (Entry& e : entries_) {
    const Tensor now = e.buffer.data();
    const bool written = now.storage() != e.shown.storage() ||
                         now.storage()->version() != e.version;
    const Tensor next = written ? ops::Cast(now, e.hidden.dtype()) : e.hidden;
    e.hidden = now;
    e.shown = next;
    e.version = next.storage()->version();
    e.buffer.set_data(next);
  }
}

}  // namespace tessera
