// How a mean over ranks is split into two divisions, for narrow types.
#pragma once

namespace tessera {

// A sum of gradients is divided by `pre` before it is made and by `post` after
// it: neither overflows float16 nor loses its small values.
struct GradientFactors {
  double pre = 1;
  double post = 1;
};

// pre * post = divisor, which is above 0; pre is 1 or more, a power of two next
// to the divisor's root. Used where the reduction itself is done in float16;
// elsewhere one division is enough.
GradientFactors GradientFactorsFor(double divisor);

}  // namespace tessera
