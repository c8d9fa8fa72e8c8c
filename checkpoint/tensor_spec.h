// A tensor that is to be written: what its file says of it.
#pragma once

#include <string>

#include "checkpoint/opaque_type.h"
#include "kernels/dtype.h"
#include "runtime/tensor/shape.h"

namespace tessera {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;  // Of the tensor that is given.
  Shape shape;
  // Not null: the file says this type, whose carrier is `dtype`.
  const OpaqueType* opaque = nullptr;
};

}  // namespace tessera
