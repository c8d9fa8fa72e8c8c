// Where a node writes the gradient of a parameter.
#pragma once

#include "runtime/autograd/node.h"
#include "runtime/tensor/tensor.h"

namespace tessera::functions {

// The leaf's own buffer where the input is a leaf, so that the gradient is born
// in its final place (by way of a temporary where that place has another order
// of dims in memory); otherwise a fresh tensor that the node returns. Not
// wanted: nothing, and buffer() is undefined.
class ParameterGradient {
 public:
  // For input `input` of `node`, inside its Apply; a parameter of this shape,
  // dtype and device.
  ParameterGradient(Node& node, int input, const Shape& shape,
                    const TensorOptions& parameter);

  // Contiguous, of the parameter's shape, AccumulateDType of its dtype.
  const Tensor& buffer() const { return target_.buffer; }
  // Whether to add to the buffer rather than overwrite it.
  bool accumulate() const { return target_.accumulate; }
  // What Apply returns for the input, after the buffer was written; to be
  // called once.
  Tensor Result() const;

 private:
  void MoveAside();

  GradientTarget target_;
  Tensor strided_;  // The leaf's own buffer, where it is not contiguous.
  DType dtype_ = DType::kFloat32;
  bool is_leaf_ = false;
};

}  // namespace tessera::functions
