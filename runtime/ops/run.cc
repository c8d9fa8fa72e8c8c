#include "runtime/ops/run.h"

#include "absl/strings/str_cat.h"

namespace tessera::ops {

Device CommonDevice(const char* operation, TensorList tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    if (first == nullptr) first = tensor;
    if (tensor->device() == first->device()) continue;
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        operation, ": tensors on different devices: ", first->ToString(),
        " and ", tensor->ToString(), "; move them to one device first")));
  }
  TESSERA_CHECK(first != nullptr);
  return first->device();
}

MemoryRange RangeOf(const Tensor& tensor) {
  if (!tensor.defined() || tensor.num_elements() == 0) return {};
  int64_t last = 0;
  for (int d = 0; d < tensor.num_dims(); ++d) {
    last += (tensor.shape().sizes()[d] - 1) * tensor.strides()[d];
  }
  return {tensor.data(), (last + 1) * ElementBytes(tensor.dtype())};
}

AccessList Accesses(TensorList reads, TensorList writes) {
  AccessList access;
  for (const Tensor* tensor : reads) access.reads.push_back(RangeOf(*tensor));
  for (const Tensor* tensor : writes) access.writes.push_back(RangeOf(*tensor));
  return access;
}

void BumpVersions(TensorList writes) {
  for (const Tensor* tensor : writes) {
    if (tensor->defined()) tensor->storage()->BumpVersion();
  }
}

Launch MakeLaunch(Device device) {
  Launch launch;
  launch.device = device.type;
  launch.num_threads = NumThreads(device);
  launch.scratch = &AllocatorOf(device);
  return launch;
}

}  // namespace tessera::ops
