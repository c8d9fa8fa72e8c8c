// Rotary position embedding.
#pragma once

#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

// Turns the pair (x[i], x[i + D/2]) of each head by the angle whose cosine and
// sine stand at [p, i] of the tables, p being the position. ("Rotate half", as
// Llama in Hugging Face's layout has it.) Position t is positions[t], or
// offset + t where there are
// none; positions[b, t] where each row has its own.
//
// x and y [B, T, H, D], of one floating type, the last dim of stride 1; y may
// be x. cos, sin [P, D/2], float32, contiguous. positions [T] or [B, T], int64,
// contiguous: all in [0, P), or kOutOfRange.
struct RopeArgs {
  TensorView x;
  TensorView cos;
  TensorView sin;
  TensorView y;
  TensorView positions;  // May be undefined.
  int64_t offset = 0;
  bool inverse = false;  // Turns back: what backward needs.
};

namespace cpu {
absl::Status Rope(const RopeArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Rope(const RopeArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<RopeArgs> kRope{"Rope", cpu::Rope, cuda::Rope};

}  // namespace tessera
