#include "fsdp/slot_pool.h"

#include "kernels/status.h"

namespace tessera {

std::shared_ptr<Storage> SlotPool::Make(int64_t num_bytes) {
  // Fresh memory may be a block that queued work has not finished with; only
  // the compute stream knows, and slots are written on others. See [Note:
  // buffers that two streams use].
  ComputeStream(options_.device).Synchronize();
  if (options_.communicator == nullptr) {
    MemoryCategoryGuard guard(options_.category);
    return Storage::Allocated(options_.device, num_bytes);
  }
  options_.stream->Synchronize();
  return OrThrow(options_.communicator->AllocateBuffer(options_.device,
                                                       num_bytes, options_.kind,
                                                       options_.category))
      .storage;
}

Slot* SlotPool::Take(int64_t num_bytes, int key) {
  std::deque<Slot*>& free = free_[{num_bytes, key}];
  if (free.empty()) {
    slots_.push_back(
        std::make_unique<Slot>(Slot{num_bytes, key, Make(num_bytes), Event()}));
    return slots_.back().get();
  }
  Slot* slot = free.front();
  free.pop_front();
  return slot;
}

void SlotPool::GiveBack(Slot* slot, Event free) {
  slot->free = std::move(free);
  free_[{slot->num_bytes, slot->key}].push_back(slot);
}

}  // namespace tessera
