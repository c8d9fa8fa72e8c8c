// Sums, means, maxima; and exact sums, which no order or split can change.
// All throw on wrong dims, dtypes or devices.
#pragma once

#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// Over all elements: a scalar of x's dtype.
Tensor Sum(const Tensor& x);
Tensor Mean(const Tensor& x);
// NaN when there is one; of no elements the lowest value.
Tensor Max(const Tensor& x);
// max |x|; of no elements 0.
Tensor MaxMagnitude(const Tensor& x);

// Along one dim, which `keep_dim` keeps with size 1.
Tensor Sum(const Tensor& x, int dim, bool keep_dim = false);
Tensor Mean(const Tensor& x, int dim, bool keep_dim = false);
Tensor Max(const Tensor& x, int dim, bool keep_dim = false);

// The gradient of broadcasting `shape` to x's: x summed over the broadcast
// dims. `x` itself when the shapes are equal.
Tensor SumTo(const Tensor& x, const Shape& shape);
// The same into (or, with `accumulate`, added to) `y`, which is of x's dtype or
// of AccumulateDType of it.
void SumInto(const Tensor& x, const Tensor& y, bool accumulate);
// y_C = the column sums of x_NC, as SumInto.
void ColumnSumsInto(const Tensor& x_NC, const Tensor& y_C, bool accumulate);

// A sum of squares, or of magnitudes, that is the same for every order, layout
// and split of its elements: ranks add up `words` (an int64 all-reduce). See
// [Note: exact sums] in kernels/reduce.h.
struct ExactSum {
  Tensor words;  // int64 [22].
};
// Zero.
ExactSum NewExactSum(Device device = CurrentDevice());
// sum += the squares of x, each rounded to float64 where x is float64. Floating
// x.
void AddSquares(const Tensor& x, const ExactSum& sum);
// sum += |x|, likewise.
void AddMagnitudes(const Tensor& x, const ExactSum& sum);
// The value, rounded once: a float64 scalar on the device.
Tensor ExactValue(const ExactSum& sum);
Tensor ExactSquareRoot(const ExactSum& sum);
// The value on the host; waits for the compute stream.
double ToDouble(const ExactSum& sum);

}  // namespace tessera::ops
