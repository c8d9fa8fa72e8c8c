// One launch over a list of tensors, which may be empty.
#pragma once

#include <vector>

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// Each tensor *= factor, and *= coefficient where that is defined (float32, one
// element, on the device). Floating tensors of one device.
void MultiScale(const std::vector<Tensor>& tensors, double factor,
                const Tensor& coefficient = Tensor());

// Each tensor = 0.
void MultiZero(const std::vector<Tensor>& tensors);

struct CopyPair {
  Tensor src;
  Tensor dst;  // Of src's shape; any dtype.
};
void MultiCopy(const std::vector<CopyPair>& pairs);

}  // namespace tessera::ops
