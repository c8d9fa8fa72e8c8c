// Devices, and what belongs to one: its allocator, compute stream and threads.
//
// A process may have many CPU devices, "cpu:0", "cpu:1", ...: each has its own
// allocator, compute stream and share of the cores, so ranks can be threads of
// one process and still be measured and limited one by one.
#pragma once

#include <string>

#include "kernels/kernel.h"

namespace tessera {

class Allocator;
class Stream;

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool is_meta() const { return type == DeviceType::kMeta; }
  std::string ToString() const;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kMetaDevice{DeviceType::kMeta, 0};
inline constexpr int kMaxCpuDevices = 64;

inline Device CpuDevice(int index = 0) {
  return Device{DeviceType::kCpu, index};
}

// The device on which this thread makes tensors when not told otherwise;
// cpu:0 at the start of each thread.
Device CurrentDevice();

// Changes CurrentDevice() of this thread for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device previous_;
};

// The allocator of `device`. Meta devices have none.
Allocator& AllocatorOf(Device device);

// The stream on which ops of `device` run, in the order of their calls.
Stream& ComputeStream(Device device);

// The stream that ops of this thread use for tensors on `device`: the compute
// stream, but inside a StreamGuard for a stream of this device.
Stream& CurrentStream(Device device);

class StreamGuard {
 public:
  explicit StreamGuard(Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream* previous_;
};

// inline: ops run on the calling thread, at once. queued: on a worker thread,
// as on a GPU, so that the caller runs ahead. Waits for the device to be idle.
enum class StreamMode { kInline, kQueued };
void SetComputeStreamMode(Device device, StreamMode mode);
StreamMode ComputeStreamMode(Device device);

// Threads that a kernel on `device` may use; all cores at first.
void SetNumThreads(Device device, int num_threads);
int NumThreads(Device device);

}  // namespace tessera
