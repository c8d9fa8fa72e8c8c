// Differentiable changes of shape. Results share memory with their input where
// strides allow it; gradients are exact.
#pragma once

#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera::functions {

// The same elements in row-major order in another shape; one size may be -1.
// Copies when the strides do not allow a view.
Variable Reshape(const Variable& x, const Shape& shape);
Variable Transpose(const Variable& x, int dim_a, int dim_b);
Variable Permute(const Variable& x, const std::vector<int>& dims);
// Elements [begin, begin + length) of `dim`.
Variable Narrow(const Variable& x, int dim, int64_t begin, int64_t length);
Variable Select(const Variable& x, int dim, int64_t index);  // Removes `dim`.
// Sizes of 1 repeated, new dims in front; the gradient is summed over them.
Variable Expand(const Variable& x, const Shape& shape);
Variable Squeeze(const Variable& x, int dim);
Variable Unsqueeze(const Variable& x, int dim);
// A row-major copy, or x itself when it is row-major.
Variable Contiguous(const Variable& x);

// Joined along `dim`; all other sizes are equal, and so are dtypes. Throws for
// an empty list.
Variable Cat(const std::vector<Variable>& parts, int dim);
// Views of consecutive `sizes` along `dim`, which they must fill.
std::vector<Variable> Split(const Variable& x,
                            const std::vector<int64_t>& sizes, int dim);

}  // namespace tessera::functions
