#include "runtime/ops/embedding.h"

#include "absl/strings/str_cat.h"
#include "kernels/embedding.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/rows.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

Tensor AsList(const Tensor& ids) {
  const Shape shape = {ids.num_elements()};
  return ids.IsContiguous() ? ids.Reshape(shape)
                            : Contiguous(ids).Reshape(shape);
}

}  // namespace

Tensor Embedding(const Tensor& ids, const Tensor& weight) {
  const bool integers =
      ids.dtype() == DType::kInt32 || ids.dtype() == DType::kInt64;
  if (!integers || weight.num_dims() != 2) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Embedding: wants int32 or int64 ids and a weight of two dims; got "
        "ids ",
        ids.ToString(), ", weight ", weight.ToString())));
  }
  Shape shape = ids.shape();
  shape.Append(weight.size(1));
  Tensor y = Tensor::Empty(shape, {weight.dtype(), weight.device()});
  const Tensor list = AsList(ids);
  const Tensor table = AsRows(weight);
  const Tensor rows = y.Reshape({list.size(0), weight.size(1)});
  CommonDevice("Embedding", {&list, &table});
  Run(kEmbedding, {ViewOf(list), ViewOf(table), ViewOf(rows)}, {&list, &table},
      {&y});
  return y;
}

void EmbeddingBackward(const Tensor& ids, const Tensor& grad_y,
                       const Tensor& grad_weight, bool accumulate) {
  TESSERA_CHECK(grad_weight.IsContiguous());
  TESSERA_CHECK(grad_weight.dtype() == AccumulateDType(grad_y.dtype()));
  const Tensor list = AsList(ids);
  const Tensor rows = AsRows(grad_y);
  Run(kEmbeddingBackward,
      {ViewOf(list), ViewOf(rows), ViewOf(grad_weight), accumulate},
      {&list, &rows}, {&grad_weight});
}

}  // namespace tessera::ops
