#include "fsdp/gradient_factors.h"

#include "kernels/status.h"

namespace tessera {

GradientFactors GradientFactorsFor(int64_t num_ranks) {
  TESSERA_CHECK(num_ranks >= 1);
  int64_t pre = 1;
  while (num_ranks % pre == 0 && num_ranks / pre > pre) pre *= 2;
  return {.pre = static_cast<double>(pre),
          .post = static_cast<double>(num_ranks) / static_cast<double>(pre)};
}

}  // namespace tessera
