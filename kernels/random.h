// Random numbers by counting: element i of a stream is a function of seed,
// stream and i alone, so any part of a tensor can be filled by anybody. The
// same bits on every instruction set.
//
// Philox4x32 with 10 rounds: key = the seed's two halves; counter = i / 4 and
// the stream, 64 bits each; word i % 4 is element i's.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera {

struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;  // A hash of a name, usually.
};

enum class Distribution : uint8_t {
  kUniform,    // 24 bits, from a up to, but for rounding not including, b.
  kNormal,     // Mean a, standard deviation b; at most 5.5 of them away.
  kBernoulli,  // 1 with probability a, else 0. Any dtype.
  kBits,       // The words themselves. int32.
};

// x[i] = element element_offset + i of the stream, for row-major i. x is
// contiguous; uniform and normal numbers want a floating dtype: they are made
// in float32 and rounded, float64 is scaled to a and b in float64.
struct FillRandomArgs {
  TensorView x = {};
  RandomKey key = {};
  Distribution distribution = Distribution::kUniform;
  double a = 0;
  double b = 1;
  int64_t element_offset = 0;
};

namespace cpu {
absl::Status FillRandom(const FillRandomArgs& args, const Launch& launch);
}  // namespace cpu

namespace cuda {
absl::Status FillRandom(const FillRandomArgs& args, const Launch& launch);
}  // namespace cuda

inline constexpr Kernel<FillRandomArgs> kFillRandom{
    "FillRandom", cpu::FillRandom, cuda::FillRandom};

}  // namespace tessera
