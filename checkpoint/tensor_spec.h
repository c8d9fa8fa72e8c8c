// A tensor that is to be written: what its file says of it.
#pragma once

#include <string>

#include "kernels/dtype.h"
#include "runtime/tensor/shape.h"

namespace tessera {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
};

}  // namespace tessera
