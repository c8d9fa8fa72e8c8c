// Sums, maxima and norms, along dims or over all elements; and sums that are
// exact, so that no order, layout or split can change them.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

enum class ReduceKind : uint8_t {
  kSum,
  kMax,           // NaN if one is there; of no elements: the lowest value.
  kMaxMagnitude,  // Largest |x|; NaN if one is there; of no elements: 0.
};

// y = op of x over every dim where y has size 1 and x has not; both have as
// many dims. Sums are kept in AccumulateDType or better. y has x's dtype or, of
// floats, AccumulateDType of it. With `accumulate` a sum is added to y. The
// order of the additions depends on shapes and strides, not on the number of
// threads.
struct ReduceArgs {
  ReduceKind op = ReduceKind::kSum;
  TensorView x;
  TensorView y;
  double factor = 1;  // Of a sum, before it is rounded or added.
  bool accumulate = false;
};

// [Note: exact sums] A finite sum of squares (or of magnitudes) of float32 and
// 16-bit floats is a multiple of 2^-298 below 2^(256 + 63), and so are all its
// partial sums. It is kept as an integer in units of 2^-320, in limbs of 32
// bits. A limb stands in an int64 word whose upper half has room for the
// carries of 2^31 additions: accumulators can be added word by word (by an
// int64 all-reduce over ranks), exactly. Nothing rounds until ExactToDouble.
// The last two words count infinities and NaNs.
inline constexpr int kExactLimbs = 20;
inline constexpr int kExactWords = kExactLimbs + 2;

enum class ExactTerm : uint8_t { kSquare, kMagnitude };

// words += the exact sum of x*x (or |x|) over all elements. x: floating,
// contiguous. words: int64 [kExactWords], zeros at first. A square of a float64
// is rounded to float64, and what is above 2^280 is an infinity; their sum is
// exact.
struct AddExactArgs {
  ExactTerm term = ExactTerm::kSquare;
  TensorView x;
  TensorView words;
};

// y (float64, one element) = the value of words, rounded once to nearest; its
// square root with `square_root`.
struct ExactToDoubleArgs {
  TensorView words;
  TensorView y;
  bool square_root = false;
};

namespace cpu {
absl::Status Reduce(const ReduceArgs& args, const Launch& launch);
absl::Status AddExact(const AddExactArgs& args, const Launch& launch);
absl::Status ExactToDouble(const ExactToDoubleArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status Reduce(const ReduceArgs& args, const Launch& launch);
absl::Status AddExact(const AddExactArgs& args, const Launch& launch);
absl::Status ExactToDouble(const ExactToDoubleArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<ReduceArgs> kReduce{"Reduce", cpu::Reduce,
                                            cuda::Reduce};
inline constexpr Kernel<AddExactArgs> kAddExact{"AddExact", cpu::AddExact,
                                                cuda::AddExact};
inline constexpr Kernel<ExactToDoubleArgs> kExactToDouble{
    "ExactToDouble", cpu::ExactToDouble, cuda::ExactToDouble};

}  // namespace tessera
