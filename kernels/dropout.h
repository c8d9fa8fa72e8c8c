// Dropout. The mask is a function of numbers that name it, so it is never
// stored: backward makes it again.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/random.h"
#include "kernels/tensor_view.h"

namespace tessera {

// Which masks a call draws. Row b of dim 0 is sample
// first_sample + b * sample_stride, and has the random stream SampleStream of
// it; element i of a row is element i of that stream.
struct DropoutKey {
  RandomKey key = {};
  int64_t first_sample = 0;
  int64_t sample_stride = 1;
};

// A well mixed function of both: SplitMix64's.
inline uint64_t SampleStream(uint64_t stream, int64_t sample) {
  uint64_t z = stream + (static_cast<uint64_t>(sample) + 1) *
                            uint64_t{0x9e3779b97f4a7c15};
  z = (z ^ (z >> 30)) * uint64_t{0xbf58476d1ce4e5b9};
  z = (z ^ (z >> 27)) * uint64_t{0x94d049bb133111eb};
  return z ^ (z >> 31);
}

// y = x / (1 - probability) where the mask keeps, else 0. Contiguous, one shape
// of at least one dim, one floating dtype; 0 <= probability < 1. The gradient
// is the same of dy. y may be x.
struct DropoutArgs {
  TensorView x = {};
  TensorView y = {};
  DropoutKey key = {};
  double probability = 0;
};

namespace cpu {
absl::Status Dropout(const DropoutArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Dropout(const DropoutArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<DropoutArgs> kDropout{"Dropout", cpu::Dropout,
                                              cuda::Dropout};

}  // namespace tessera
