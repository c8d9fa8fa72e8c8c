#include "runtime/functions/embedding.h"

#include "runtime/autograd/node.h"
#include "runtime/functions/parameter_gradient.h"
#include "runtime/ops/embedding.h"

namespace tessera::functions {
namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(const Tensor& ids, const Variable& weight)
      : ids_(name(), ids),
        shape_(weight.shape()),
        options_{weight.dtype(), weight.device()} {}

  const char* name() const override { return "Embedding"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const ParameterGradient grad_weight(*this, 0, shape_, options_);
    ops::EmbeddingBackward(ids_.Unpack(), grads[0], grad_weight.buffer(),
                           grad_weight.accumulate());
    return {grad_weight.Result()};
  }

  void ReleaseSaved() override { ids_.Free(); }

 private:
  SavedTensor ids_;
  const Shape shape_;  // Of weight, whose value backward does not need.
  const TensorOptions options_;
};

}  // namespace

Variable Embedding(const Tensor& ids, const Variable& weight) {
  return Record(ops::Embedding(ids, weight.data()), {weight},
                [&] { return std::make_shared<EmbeddingNode>(ids, weight); });
}

}  // namespace tessera::functions
