// Buffers that units take turns in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/storage.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Memory that is lent to one unit at a time. Whoever takes it next first makes
// its stream wait for `free`.
struct Slot {
  int64_t num_bytes = 0;
  int key = 0;
  std::shared_ptr<Storage> memory;
  bool common = false;  // All ranks see the same bytes.
  Event free;

  // The first `length` elements.
  Tensor Vector(int64_t length, DType dtype) const {
    return Tensor::View(memory, 0, {length}, dtype);
  }
  // Makes `storage` show this memory until it is released.
  void AttachTo(Storage& storage) const {
    storage.Attach(memory->data(), memory);
  }
  // Where the device's allocator poisons what is freed: overwrites the memory
  // with NaN, so that whoever still reads it is noticed. Not what others see.
  void Poison(Stream& stream) const;
};

// Units of one size (and key) share slots of that size. A slot is made when
// none is free, and then kept: from the second step on nothing is allocated.
// Making one is a collective call, so all ranks take and give back slots in the
// same order; since they run the same schedule, they do, and where slots are
// common memory, the same unit is in the same slot on every rank.
class SlotPool {
 public:
  struct Options {
    // Null: memory of this rank alone.
    Communicator* communicator = nullptr;
    CommBufferKind kind = CommBufferKind::kCommon;
    MemoryCategory category = MemoryCategory::kUnsharded;
    Device device;
  };
  explicit SlotPool(const Options& options) : options_(options) {}
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // The slot that has been free the longest. Throws when memory runs out.
  Slot* Take(int64_t num_bytes, int key = 0);
  // Free once `free` has passed.
  void GiveBack(Slot* slot, Event free);
  // Poisons it behind all work of `stream`, after which it is free; forgets it.
  // Nothing for null.
  void GiveBack(Slot*& slot, Stream& stream);
  // Gives up all slots that nobody holds, once their `free` has passed.
  void ReleaseFree();
  // All slots are free again, in the order in which they were made, which is
  // the same on all ranks: whoever holds one forgets it. While nothing runs.
  void TakeBackAll();
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }

 private:
  CommBuffer Make(int64_t num_bytes);

  const Options options_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::map<std::pair<int64_t, int>, std::deque<Slot*>> free_;
};

}  // namespace tessera
