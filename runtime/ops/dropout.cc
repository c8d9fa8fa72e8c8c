#include "runtime/ops/dropout.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {

Tensor Dropout(const Tensor& x, const DropoutKey& key, double probability) {
  if (!IsFloating(x.dtype()) || x.num_dims() == 0 ||
      !(probability >= 0 && probability < 1)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Dropout: wants floating [B, ...] and a probability in [0, 1), got ",
        x.ToString(), " and ", probability)));
  }
  const Tensor values = Contiguous(x);
  Tensor y = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  Run(kDropout, {ViewOf(values), ViewOf(y), key, probability}, {&values}, {&y});
  return y;
}

}  // namespace tessera::ops
