#include "runtime/autograd/variable.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/engine.h"
#include "runtime/autograd/node.h"

namespace tessera {
namespace {

void CheckDifferentiable(const Tensor& data) {
  if (IsFloating(data.dtype())) return;
  throw Error(absl::InvalidArgumentError(
      absl::StrCat("Variable: only floating tensors have gradients, got ",
                   data.ToString())));
}

}  // namespace

Variable::Variable(Tensor data, bool requires_grad)
    : impl_(std::make_shared<VariableImpl>()) {
  if (requires_grad) CheckDifferentiable(data);
  impl_->data = std::move(data);
  impl_->requires_grad = requires_grad;
}

Variable::Variable(Tensor data, std::shared_ptr<Node> grad_fn, int output_index)
    : impl_(std::make_shared<VariableImpl>()) {
  impl_->data = std::move(data);
  impl_->requires_grad = true;
  impl_->grad_fn = std::move(grad_fn);
  impl_->output_index = output_index;
}

void Variable::set_requires_grad(bool requires_grad) {
  if (!is_leaf()) {
    throw Error(absl::FailedPreconditionError(
        "set_requires_grad: only leaves can be changed; Detach() the result "
        "of an op first"));
  }
  if (requires_grad) CheckDifferentiable(impl_->data);
  impl_->requires_grad = requires_grad;
}

void Variable::Backward(const Tensor& grad, bool retain_graph) const {
  Engine::Backward({*this}, {grad}, retain_graph);
}

}  // namespace tessera
