// A block of memory that tensors view; can be released and come back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/device/allocator.h"
#include "runtime/device/device.h"

namespace tessera {

// Views keep their storage and an offset and ask for the pointer when a kernel
// is launched, so a storage may be released between uses and allocated or
// attached again, elsewhere: views stay valid, and a use while it is released
// is an error that names the storage. Nothing may cache the pointer without
// the generation.
//
// [Note: versions] Every op that writes through a tensor bumps the version of
// its storage; autograd compares it with the one it saw when it saved a value.
// A release and a re-gather do not change the version.
class Storage {
 public:
  // Memory from the device's allocator, counted under the current category;
  // no memory on meta devices.
  static std::shared_ptr<Storage> Allocated(Device device, int64_t num_bytes);
  // Memory of somebody else; `owner` (may be null) is kept while it is used.
  static std::shared_ptr<Storage> Borrowed(Device device, void* data,
                                           int64_t num_bytes,
                                           std::shared_ptr<void> owner);
  // Released from the start; `name` is what errors call it.
  static std::shared_ptr<Storage> Deferred(Device device, int64_t num_bytes,
                                           std::string name);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device() const { return device_; }
  int64_t num_bytes() const { return num_bytes_; }
  // Throws Error(kFailedPrecondition) when released or on meta.
  void* data() const;
  bool released() const { return data_ == nullptr && !device_.is_meta(); }
  // Counts the changes of address.
  uint64_t generation() const { return generation_; }

  // Gives the memory back (or lets go of the borrowed memory).
  void Release();
  // Fresh memory of `category` from the allocator; only when released.
  void Allocate(MemoryCategory category);
  // Somebody else's memory, `num_bytes()` long; only when released.
  void Attach(void* data, std::shared_ptr<void> owner);

  int64_t version() const { return version_; }
  void BumpVersion() { ++version_; }

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

 private:
  Storage(Device device, int64_t num_bytes)
      : device_(device), num_bytes_(num_bytes) {}

  const Device device_;
  const int64_t num_bytes_;
  void* data_ = nullptr;
  bool own_ = false;
  std::shared_ptr<void> owner_;
  uint64_t generation_ = 0;
  int64_t version_ = 0;
  std::string name_;
};

}  // namespace tessera
