#include "runtime/device/device.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

struct DeviceContext {
  explicit DeviceContext(Device device)
      : allocator(device),
        stream(std::make_unique<Stream>(
            device, absl::StrCat("compute ", device.ToString()),
            StreamMode::kInline)) {}

  // The stream ends before the memory its work uses.
  Allocator allocator;
  std::unique_ptr<Stream> stream;
  std::atomic<int> num_threads{omp_get_num_procs()};
};

thread_local Device current_device;
thread_local Stream* current_stream = nullptr;

// Contexts live as long as the process: memory may be freed very late.
DeviceContext& ContextOf(Device device) {
  static std::array<std::atomic<DeviceContext*>, kMaxCpuDevices> contexts{};
  static std::mutex mutex;
  if (device.type == DeviceType::kMeta) {
    throw Error(absl::InvalidArgumentError(
        "meta device: it has no memory and runs nothing; materialise the "
        "tensor first"));
  }
  if (device.type == DeviceType::kCuda) {
    throw Error(absl::UnimplementedError(
        absl::StrCat(device.ToString(),
                     ": built without CUDA; use a CPU device or build with "
                     "--define=cuda=1")));
  }
  if (device.index < 0 || device.index >= kMaxCpuDevices) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("device: wanted cpu:0 to cpu:", kMaxCpuDevices - 1,
                     ", got ", device.ToString())));
  }
  auto& slot = contexts[device.index];
  if (DeviceContext* context = slot.load(std::memory_order_acquire)) {
    return *context;
  }
  std::lock_guard lock(mutex);
  if (slot.load() == nullptr) slot.store(new DeviceContext(device));
  return *slot.load();
}

}  // namespace

std::string Device::ToString() const {
  switch (type) {
    case DeviceType::kCpu:
      return absl::StrCat("cpu:", index);
    case DeviceType::kCuda:
      return absl::StrCat("cuda:", index);
    case DeviceType::kMeta:
      return "meta";
  }
  return "?";
}

Device CurrentDevice() { return current_device; }

DeviceGuard::DeviceGuard(Device device) : previous_(current_device) {
  current_device = device;
}
DeviceGuard::~DeviceGuard() { current_device = previous_; }

Allocator& AllocatorOf(Device device) { return ContextOf(device).allocator; }

Stream& ComputeStream(Device device) { return *ContextOf(device).stream; }

Stream& CurrentStream(Device device) {
  if (current_stream != nullptr && current_stream->device() == device) {
    return *current_stream;
  }
  return ComputeStream(device);
}

StreamGuard::StreamGuard(Stream& stream) : previous_(current_stream) {
  current_stream = &stream;
}
StreamGuard::~StreamGuard() { current_stream = previous_; }

void SetComputeStreamMode(Device device, StreamMode mode) {
  DeviceContext& context = ContextOf(device);
  context.stream->Synchronize();
  if (context.stream->mode() == mode) return;
  context.stream = std::make_unique<Stream>(
      device, absl::StrCat("compute ", device.ToString()), mode);
}

StreamMode ComputeStreamMode(Device device) {
  return ContextOf(device).stream->mode();
}

void SetNumThreads(Device device, int num_threads) {
  if (num_threads < 1) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "SetNumThreads: wanted at least 1 thread, got ", num_threads)));
  }
  ContextOf(device).num_threads = num_threads;
}

int NumThreads(Device device) { return ContextOf(device).num_threads; }

}  // namespace tessera
