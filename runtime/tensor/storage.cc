#include "runtime/tensor/storage.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

// In the order of the compute stream, as every use of the memory is.
void Poison(Device device, void* data, int64_t num_bytes) {
  if (!AllocatorOf(device).poison()) return;
  CurrentStream(device).Enqueue(
      "Poison", [data, num_bytes] { std::memset(data, 0xFF, num_bytes); },
      AccessList{{}, {{data, num_bytes}}});
}

}  // namespace

std::shared_ptr<Storage> Storage::Allocated(Device device, int64_t num_bytes) {
  std::shared_ptr<Storage> storage(new Storage(device, num_bytes));
  if (!device.is_meta()) storage->Allocate(CurrentMemoryCategory());
  return storage;
}

std::shared_ptr<Storage> Storage::Borrowed(Device device, void* data,
                                           int64_t num_bytes,
                                           std::shared_ptr<void> owner) {
  std::shared_ptr<Storage> storage(new Storage(device, num_bytes));
  storage->Attach(data, std::move(owner));
  return storage;
}

std::shared_ptr<Storage> Storage::Deferred(Device device, int64_t num_bytes,
                                           std::string name) {
  std::shared_ptr<Storage> storage(new Storage(device, num_bytes));
  storage->name_ = std::move(name);
  return storage;
}

Storage::~Storage() {
  if (own_) AllocatorOf(device_).Free(data_);
}

void* Storage::data() const {
  if (data_ != nullptr) return data_;
  const std::string what =
      name_.empty() ? "a tensor's storage" : absl::StrCat("\"", name_, "\"");
  if (device_.is_meta()) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        what,
        " is on the meta device and has no values: materialise it "
        "(InitializeParameters, or load values) before using them")));
  }
  throw Error(absl::FailedPreconditionError(
      absl::StrCat(what,
                   " is released: it is used outside the time in which it is "
                   "unsharded; use it inside a forward of its module, or "
                   "gather the full parameters first")));
}

void Storage::Release() {
  if (data_ == nullptr) return;
  if (own_) {
    Poison(device_, data_, num_bytes_);
    AllocatorOf(device_).Free(data_);
  }
  data_ = nullptr;
  own_ = false;
  owner_.reset();
  ++generation_;
}

void Storage::Allocate(MemoryCategory category) {
  TESSERA_CHECK(released());
  data_ = AllocatorOf(device_).AllocateAs(num_bytes_, category);
  own_ = true;
  ++generation_;
  Poison(device_, data_, num_bytes_);
}

void Storage::Attach(void* data, std::shared_ptr<void> owner) {
  TESSERA_CHECK(released() && data != nullptr);
  data_ = data;
  owner_ = std::move(owner);
  ++generation_;
}

}  // namespace tessera
