#include "runtime/ops/norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/norm.h"
#include "runtime/ops/rows.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

void CheckParameter(const char* operation, const char* name, const Tensor& x,
                    const Tensor& parameter) {
  const bool fits =
      parameter.num_dims() == 1 && parameter.size(0) == x.size(-1) &&
      IsFloating(parameter.dtype()) &&
      (parameter.dtype() == DType::kFloat64) == (x.dtype() == DType::kFloat64);
  if (fits) return;
  throw Error(absl::InvalidArgumentError(
      absl::StrCat(operation, ": wants ", name,
                   " of the size of x's last dim, in float64 if and only if "
                   "x is; got x ",
                   x.ToString(), ", ", name, " ", parameter.ToString())));
}

void CheckNorm(const char* operation, const Tensor& x, const Tensor& weight,
               const Tensor& bias) {
  if (!IsFloating(x.dtype()) || x.num_dims() == 0 || x.size(-1) == 0) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat(operation,
                     ": wants a floating x whose last dim is not "
                     "empty; got ",
                     x.ToString())));
  }
  CheckParameter(operation, "weight", x, weight);
  if (bias.defined()) CheckParameter(operation, "bias", x, bias);
}

NormResult EmptyResult(const Tensor& x, bool has_mean) {
  const Shape rows = {x.num_elements() / x.size(-1)};
  const TensorOptions statistics = {AccumulateDType(x.dtype()), x.device()};
  NormResult result;
  result.y = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  if (has_mean) result.mean = Tensor::Empty(rows, statistics);
  result.rstd = Tensor::Empty(rows, statistics);
  return result;
}

// What a kernel is given for x's gradient; rows that it can write.
Tensor GradRows(const Tensor& grad_x) {
  if (!grad_x.defined()) return grad_x;
  TESSERA_CHECK(grad_x.IsContiguous());
  return AsRows(grad_x);
}

void CheckSum(const Tensor& sum) {
  TESSERA_CHECK(!sum.defined() || sum.IsContiguous());
}

}  // namespace

NormResult LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) {
  CheckNorm("LayerNorm", x, weight, bias);
  NormResult result = EmptyResult(x, /*has_mean=*/true);
  const Tensor rows = AsRows(x);
  const Tensor y = AsRows(result.y);
  Run(kLayerNorm,
      {ViewOf(rows), ViewOf(weight), ViewOf(bias), ViewOf(y),
       ViewOf(result.mean), ViewOf(result.rstd), eps},
      {&rows, &weight, &bias}, {&result.y, &result.mean, &result.rstd});
  return result;
}

NormResult RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  CheckNorm("RmsNorm", x, weight, Tensor());
  NormResult result = EmptyResult(x, /*has_mean=*/false);
  const Tensor rows = AsRows(x);
  const Tensor y = AsRows(result.y);
  Run(kRmsNorm,
      {ViewOf(rows), ViewOf(weight), ViewOf(y), ViewOf(result.rstd), eps},
      {&rows, &weight}, {&result.y, &result.rstd});
  return result;
}

void LayerNormBackward(const Tensor& x, const Tensor& weight,
                       const NormResult& forward, const Tensor& grad_y,
                       const NormGradients& gradients) {
  const Tensor rows = AsRows(x);
  const Tensor dy = AsRows(grad_y);
  const Tensor dx = GradRows(gradients.x);
  CheckSum(gradients.weight);
  CheckSum(gradients.bias);
  Run(kLayerNormBackward,
      {ViewOf(rows), ViewOf(weight), ViewOf(forward.mean), ViewOf(forward.rstd),
       ViewOf(dy), ViewOf(dx), ViewOf(gradients.weight), ViewOf(gradients.bias),
       gradients.accumulate_weight, gradients.accumulate_bias},
      {&rows, &weight, &forward.mean, &forward.rstd, &dy},
      {&dx, &gradients.weight, &gradients.bias});
}

void RmsNormBackward(const Tensor& x, const Tensor& weight,
                     const NormResult& forward, const Tensor& grad_y,
                     const NormGradients& gradients) {
  const Tensor rows = AsRows(x);
  const Tensor dy = AsRows(grad_y);
  const Tensor dx = GradRows(gradients.x);
  CheckSum(gradients.weight);
  Run(kRmsNormBackward,
      {ViewOf(rows), ViewOf(weight), ViewOf(forward.rstd), ViewOf(dy),
       ViewOf(dx), ViewOf(gradients.weight), gradients.accumulate_weight},
      {&rows, &weight, &forward.rstd, &dy}, {&dx, &gradients.weight});
}

}  // namespace tessera::ops
