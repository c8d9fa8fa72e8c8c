// Optimizer steps: one pass over the memory of a whole group of parameters.
//
// A launch works on a list of segments, runs of consecutive elements. Every
// element is computed alike, so its bits depend neither on where a segment
// starts or ends nor on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/kernel.h"

namespace tessera {

// A run of elements of one parameter. Parameters are of any floating dtype;
// gradients and states are AccumulateDType of it (float32; float64 for
// float64), and so is the arithmetic. A parameter is rounded once.
struct OptimizerSegment {
  int64_t num_elements = 0;
  DType dtype = DType::kFloat32;  // Of the parameter.
  void* parameter = nullptr;
  const void* gradient = nullptr;
  // Receives a copy of the new parameter in `shadow_dtype`, a 16-bit float;
  // or null. Only for float32 parameters.
  void* shadow = nullptr;
  DType shadow_dtype = DType::kBFloat16;
};

struct AdamWSegment : OptimizerSegment {
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  int64_t step = 1;  // Counts from 1: the number of this update.
};

// With g = grad_scale * gradient, m = exp_avg and v = exp_avg_sq:
//   p -= lr * weight_decay * p
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g^2
//   p -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
struct AdamWArgs {
  std::vector<AdamWSegment> segments = {};
  const float* grad_scale = nullptr;  // One number on the device; null: 1.
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

struct SgdSegment : OptimizerSegment {
  void* momentum_buffer = nullptr;  // Null where momentum is 0.
  bool first = false;               // The buffer is set, not updated.
};

// With b = momentum_buffer:
//   g = grad_scale * gradient + weight_decay * p
//   b = first ? g : momentum * b + (1 - dampening) * g
//   p -= lr * (nesterov ? g + momentum * b : b)
// and without momentum p -= lr * g.
struct SgdArgs {
  std::vector<SgdSegment> segments = {};
  const float* grad_scale = nullptr;  // One number on the device; null: 1.
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

struct UnscaleSegment {
  int64_t num_elements = 0;
  DType dtype = DType::kFloat32;  // float32 or float64.
  void* gradient = nullptr;
};

// gradient *= factor; *found_inf = 1 where a gradient, before that, was not
// finite, else it is left as it is.
struct UnscaleArgs {
  std::vector<UnscaleSegment> segments = {};
  double factor = 1;
  float* found_inf = nullptr;
};

namespace cpu {
absl::Status AdamW(const AdamWArgs& args, const Launch& launch);
absl::Status Sgd(const SgdArgs& args, const Launch& launch);
absl::Status Unscale(const UnscaleArgs& args, const Launch& launch);
}  // namespace cpu
namespace cuda {
absl::Status AdamW(const AdamWArgs& args, const Launch& launch);
absl::Status Sgd(const SgdArgs& args, const Launch& launch);
absl::Status Unscale(const UnscaleArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<AdamWArgs> kAdamW{"AdamW", cpu::AdamW, cuda::AdamW};
inline constexpr Kernel<SgdArgs> kSgd{"Sgd", cpu::Sgd, cuda::Sgd};
inline constexpr Kernel<UnscaleArgs> kUnscale{"Unscale", cpu::Unscale,
                                              cuda::Unscale};

}  // namespace tessera
