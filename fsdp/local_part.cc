#include "fsdp/local_part.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

absl::StatusOr<Tensor> LocalPart(const ShardedParameter& parameter,
                                 const Tensor& whole) {
  if (whole.shape() != parameter.global_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "part of ", parameter.name, ": wanted the whole ",
        parameter.global_shape.ToString(), ", got ", whole.ToString()));
  }
  Tensor part;
  RETURN_IF_ERROR(Try([&] {
    const Tensor stored =
        ops::Contiguous(whole.Permute(parameter.order)).Flatten();
    part = Tensor::Empty({parameter.length}, {whole.dtype(), whole.device()});
    ops::Copy(stored.Narrow(0, parameter.begin, parameter.length), part);
  }));
  return part;
}

}  // namespace tessera
