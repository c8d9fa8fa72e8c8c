// One launch over a list of tensors.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// Each tensor *= factor (times `coefficient` where defined: float32, one
// element).
struct MultiScaleArgs {
  std::vector<TensorView> tensors = {};
  double factor = 1;
  TensorView coefficient = {};
};

// Each tensor = value.
struct MultiFillArgs {
  std::vector<TensorView> tensors = {};
  double value = 0;
};

// Each dst = its src, converted to dst's dtype, as Copy does.
struct MultiCopyArgs {
  struct Pair {
    TensorView src;
    TensorView dst;
  };
  std::vector<Pair> pairs = {};
};

namespace cpu {
absl::Status MultiScale(const MultiScaleArgs& args, const Launch& launch);
absl::Status MultiFill(const MultiFillArgs& args, const Launch& launch);
absl::Status MultiCopy(const MultiCopyArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status MultiScale(const MultiScaleArgs& args, const Launch& launch);
absl::Status MultiFill(const MultiFillArgs& args, const Launch& launch);
absl::Status MultiCopy(const MultiCopyArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<MultiScaleArgs> kMultiScale{
    "MultiScale", cpu::MultiScale, cuda::MultiScale};
inline constexpr Kernel<MultiFillArgs> kMultiFill{"MultiFill", cpu::MultiFill,
                                                  cuda::MultiFill};
inline constexpr Kernel<MultiCopyArgs> kMultiCopy{"MultiCopy", cpu::MultiCopy,
                                                  cuda::MultiCopy};

}  // namespace tessera
