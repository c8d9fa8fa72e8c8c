#include "fsdp/gradient_factors.h"

#include <cmath>

#include "kernels/status.h"

namespace tessera {

GradientFactors GradientFactorsFor(double divisor) {
  TESSERA_CHECK(divisor > 0 && std::isfinite(divisor));
  // Of a number of ranks, both factors are exact.
  const bool whole = std::floor(divisor) == divisor;
  double pre = 1;
  while (divisor / pre > pre && (!whole || std::fmod(divisor, pre) == 0)) {
    pre *= 2;
  }
  return {.pre = pre, .post = divisor / pre};
}

}  // namespace tessera
