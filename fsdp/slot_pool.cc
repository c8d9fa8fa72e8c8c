#include "fsdp/slot_pool.h"

#include <cstring>

#include "kernels/status.h"
#include "runtime/device/allocator.h"

namespace tessera {

void Slot::Poison(Stream& stream) const {
  if (common || !AllocatorOf(memory->device()).poison()) return;
  stream.Enqueue(
      "Poison",
      [data = memory->data(), n = num_bytes] { std::memset(data, 0xFF, n); },
      AccessList{{}, {{memory->data(), num_bytes}}});
}

CommBuffer SlotPool::Make(int64_t num_bytes) {
  if (options_.communicator != nullptr) {
    return OrThrow(options_.communicator->AllocateBuffer(
        options_.device, num_bytes, options_.kind, options_.category));
  }
  MemoryCategoryGuard guard(options_.category);
  CommBuffer buffer{Storage::Allocated(options_.device, num_bytes), false};
  // Fresh memory may be a block that queued work has not finished with; only
  // the compute stream knows, and slots are written on others. See [Note:
  // buffers that two streams use].
  ComputeStream(options_.device).Synchronize();
  return buffer;
}

Slot* SlotPool::Take(int64_t num_bytes, int key) {
  std::deque<Slot*>& free = free_[{num_bytes, key}];
  if (free.empty()) {
    const CommBuffer buffer = Make(num_bytes);
    slots_.push_back(std::make_unique<Slot>(
        Slot{num_bytes, key, buffer.storage, buffer.common, Event()}));
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

void SlotPool::GiveBack(Slot*& slot, Stream& stream) {
  if (slot == nullptr) return;
  slot->Poison(stream);
  GiveBack(slot, stream.Record());
  slot = nullptr;
}

void SlotPool::TakeBackAll() {
  free_.clear();
  for (const auto& slot : slots_) GiveBack(slot.get(), Event());
}

void SlotPool::ReleaseFree() {
  for (const auto& [size, slots] : free_) {
    for (Slot* slot : slots) {
      std::erase_if(slots_, [&](const auto& s) { return s.get() == slot; });
    }
  }
  free_.clear();
}

}  // namespace tessera
