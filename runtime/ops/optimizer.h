// Steps of optimizers on lists of tensors, each in one launch. All throw,
// naming the place in the list, on wrong dtypes, sizes or devices.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// A parameter of any floating dtype and strides. Gradient and states have as
// many elements, in the same row-major order, and AccumulateDType; states are
// contiguous.
struct AdamWParameter {
  Tensor parameter;
  Tensor gradient;
  Tensor shadow;  // Undefined; or a 16-bit copy of a float32 parameter.
  Tensor exp_avg;
  Tensor exp_avg_sq;
  int64_t step = 1;  // The number of this update, from 1.
};
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};
// The formulas are those of AdamWArgs. `grad_scale` is undefined or float32
// with one element: what gradients are multiplied by first.
void AdamW(const std::vector<AdamWParameter>& parameters,
           const AdamWOptions& options, const Tensor& grad_scale = Tensor());

// As AdamWParameter.
struct SgdParameter {
  Tensor parameter;
  Tensor gradient;
  Tensor shadow;
  Tensor momentum_buffer;  // Undefined where momentum is 0.
  bool first = false;      // The buffer is set, not updated.
};
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
// The formulas are those of SgdArgs.
void Sgd(const std::vector<SgdParameter>& parameters, const SgdOptions& options,
         const Tensor& grad_scale = Tensor());

// Multiplies all of `gradients` (contiguous, float32 or float64) by `factor`,
// and sets `found_inf` (float32, one element) to 1 where one was not finite.
void Unscale(const std::vector<Tensor>& gradients, double factor,
             const Tensor& found_inf);

}  // namespace tessera::ops
