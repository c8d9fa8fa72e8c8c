// Lists of tensors: on the CPU a launch costs little, so one tensor follows
// the other.
#include "kernels/multi_tensor.h"

#include "kernels/elementwise.h"
#include "kernels/status.h"

namespace tessera::cpu {
absl::Status MultiScale(const MultiScaleArgs& args, const Launch& launch) {
  double factor = args.factor;
  if (args.coefficient.defined()) {
    factor *= *args.coefficient.as<const float>();
  }
  for (const TensorView& x : args.tensors) {
    RETURN_IF_ERROR(Affine({x, x, factor, 0}, launch));
  }
  return absl::OkStatus();
}

absl::Status MultiFill(const MultiFillArgs& args, const Launch& launch) {
  for (const TensorView& x : args.tensors) {
    RETURN_IF_ERROR(Fill({x, args.value}, launch));
  }
  return absl::OkStatus();
}

absl::Status MultiCopy(const MultiCopyArgs& args, const Launch& launch) {
  for (const MultiCopyArgs::Pair& pair : args.pairs) {
    RETURN_IF_ERROR(Copy({pair.src, pair.dst}, launch));
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
