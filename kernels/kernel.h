// How a kernel is called: where, with how many threads, with what scratch
// memory. One table entry a kernel says which function each device runs.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tessera {

enum class DeviceType : uint8_t { kCpu, kCuda, kMeta };

// Working memory of a kernel, given by the caller and counted by its
// allocator. Lives as long as the kernel runs.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // 64-byte aligned; throws tessera::Error when the memory limit is reached.
  virtual void* Allocate(int64_t num_bytes) = 0;
  virtual void Free(void* data) = 0;
};

struct Launch {
  DeviceType device = DeviceType::kCpu;
  void* stream = nullptr;      // A cudaStream_t on CUDA, unused on the CPU.
  int num_threads = 1;         // This rank's share of the cores.
  Scratch* scratch = nullptr;  // Never null when a runtime op launches.
};

// Scratch memory for the length of a scope.
class ScratchBuffer {
 public:
  ScratchBuffer(const Launch& launch, int64_t num_bytes)
      : scratch_(launch.scratch),
        data_(num_bytes > 0 ? scratch_->Allocate(num_bytes) : nullptr) {}
  ~ScratchBuffer() {
    if (data_ != nullptr) scratch_->Free(data_);
  }
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Scratch* scratch_;
  void* data_;
};

template <typename Args>
struct Kernel {
  using Function = absl::Status (*)(const Args&, const Launch&);
  const char* name;
  Function cpu;
  Function cuda;

  absl::Status operator()(const Args& args, const Launch& launch) const {
    return launch.device == DeviceType::kCuda ? cuda(args, launch)
                                              : cpu(args, launch);
  }
};

}  // namespace tessera
