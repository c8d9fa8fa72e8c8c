#include "runtime/ops/cross_entropy.h"

#include "absl/strings/str_cat.h"
#include "kernels/cross_entropy.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

void CheckRows(const Tensor& rows) {
  TESSERA_CHECK(rows.num_dims() == 2);
  TESSERA_CHECK(rows.strides()[1] == 1 || rows.size(1) <= 1);
}

}  // namespace

void CheckCrossEntropy(const char* operation, const Tensor& logits,
                       const Tensor& targets) {
  const bool fits = IsFloating(logits.dtype()) && logits.num_dims() == 2 &&
                    targets.dtype() == DType::kInt64 &&
                    targets.num_dims() == 1 &&
                    targets.size(0) == logits.size(0);
  if (fits) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      operation, ": wants floating logits [N, V] and int64 targets [N]; got ",
      logits.ToString(), " and ", targets.ToString())));
}

void CrossEntropyInto(const Tensor& logits, const Tensor& targets,
                      const CrossEntropyOptions& options,
                      const CrossEntropyOutput& output) {
  CheckCrossEntropy("CrossEntropy", logits, targets);
  CheckRows(logits);
  Run(kCrossEntropy,
      {ViewOf(logits), ViewOf(targets), ViewOf(output.logsumexp),
       ViewOf(output.loss), ViewOf(options.counted), options.ignore_index,
       options.scale, output.accumulate},
      {&logits, &targets, &options.counted}, {&output.loss, &output.logsumexp});
}

void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                          const Tensor& logsumexp,
                          const CrossEntropyOptions& options,
                          const CrossEntropyGradient& gradient) {
  CheckCrossEntropy("CrossEntropyBackward", logits, targets);
  CheckRows(logits);
  CheckRows(gradient.grad_logits);
  Run(kCrossEntropyBackward,
      {ViewOf(logits), ViewOf(targets), ViewOf(logsumexp),
       ViewOf(gradient.grad_loss), ViewOf(gradient.grad_logits),
       ViewOf(options.counted), options.ignore_index, options.scale},
      {&logits, &targets, &logsumexp, &gradient.grad_loss, &options.counted},
      {&gradient.grad_logits});
}

}  // namespace tessera::ops
