// How a mean over ranks is split into two divisions, for narrow types.
#pragma once

#include <cstdint>

namespace tessera {

// A sum of `num_ranks` gradients is divided by `pre` before it is made and by
// `post` after it: neither overflows float16 nor loses its small values.
struct GradientFactors {
  double pre = 1;
  double post = 1;
};

// pre * post = num_ranks, pre a power of two next to its root. Used where the
// reduction itself is done in float16; elsewhere one division is enough.
GradientFactors GradientFactorsFor(int64_t num_ranks);

}  // namespace tessera
