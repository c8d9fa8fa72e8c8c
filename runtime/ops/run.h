// The one door from ops to kernels.
#pragma once

#include <utility>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/status.h"
#include "runtime/device/device.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// Braces `{&a, &b}` or a vector.
using TensorList = absl::Span<const Tensor* const>;

// The device that all of `tensors` (undefined ones aside) are on; throws,
// naming `operation`, when they differ.
Device CommonDevice(const char* operation, TensorList tensors);

// The bytes from a tensor's first element to its last.
MemoryRange RangeOf(const Tensor& tensor);
AccessList Accesses(TensorList reads, TensorList writes);
// Bumps the versions of what is written, see [Note: versions].
void BumpVersions(TensorList writes);
Launch MakeLaunch(Device device);

// Queues `kernel` on the current stream of the tensors' device. `args` hold
// views that were resolved just now. Nothing happens on meta. `reads` and
// `writes` name every tensor the kernel touches.
template <typename Args>
void Run(const Kernel<Args>& kernel, Args args, TensorList reads,
         TensorList writes) {
  const Device device = CommonDevice(kernel.name, writes);
  if (device.is_meta()) return;
  BumpVersions(writes);
  CurrentStream(device).Enqueue(
      kernel.name,
      [&kernel, args = std::move(args), launch = MakeLaunch(device)] {
        OrThrow(kernel(args, launch));
      },
      Accesses(reads, writes));
}

// A view for kernel arguments: empty for an undefined or a meta tensor.
inline TensorView ViewOf(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() ? tensor.view() : TensorView{};
}

}  // namespace tessera::ops
