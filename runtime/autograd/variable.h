// A tensor with a gradient and a history.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace tessera {

class Node;
class GradientSink;

// What all copies of a Variable share.
struct VariableImpl {
  Tensor data;
  Tensor grad;
  bool requires_grad = false;
  std::shared_ptr<Node> grad_fn;       // Null for leaves.
  int output_index = 0;                // Which output of grad_fn this is.
  std::shared_ptr<GradientSink> sink;  // Of leaves, usually null.
  std::string name;                    // For error messages.
};

// A handle: copies are the same variable, so a parameter that two modules hold
// is tied. A leaf (no grad_fn) that requires a gradient accumulates it in
// grad(): in float32 for 16- and 32-bit floats, float64 for float64.
class Variable {
 public:
  Variable() = default;
  explicit Variable(Tensor data, bool requires_grad = false);
  // A result of `grad_fn`.
  Variable(Tensor data, std::shared_ptr<Node> grad_fn, int output_index);

  bool defined() const { return impl_ != nullptr; }
  const Tensor& data() const { return impl_->data; }
  // Replaces the value, for all copies of the handle.
  void set_data(Tensor data) { impl_->data = std::move(data); }
  const Shape& shape() const { return impl_->data.shape(); }
  int64_t size(int d) const { return impl_->data.size(d); }
  int num_dims() const { return impl_->data.num_dims(); }
  DType dtype() const { return impl_->data.dtype(); }
  Device device() const { return impl_->data.device(); }

  bool requires_grad() const { return impl_->requires_grad; }
  // Of leaves only; throws for results.
  void set_requires_grad(bool requires_grad);
  bool is_leaf() const { return impl_->grad_fn == nullptr; }
  // Undefined until a backward has reached this leaf.
  const Tensor& grad() const { return impl_->grad; }
  void set_grad(Tensor grad) { impl_->grad = std::move(grad); }
  void ZeroGrad() { impl_->grad = Tensor(); }

  // Gradients of this (by default: of a scalar, with 1) with respect to every
  // leaf that requires one, added to what they hold. Frees the saved values
  // unless `retain_graph`; a second backward through freed ones is an error.
  void Backward(const Tensor& grad = Tensor(), bool retain_graph = false) const;
  // The same value without a history.
  Variable Detach() const { return Variable(impl_->data); }

  const std::string& name() const { return impl_->name; }
  void set_name(std::string name) { impl_->name = std::move(name); }
  const std::shared_ptr<VariableImpl>& impl() const { return impl_; }
  // Whether both are the same variable (not: have the same value).
  bool Is(const Variable& other) const { return impl_ == other.impl_; }

 private:
  std::shared_ptr<VariableImpl> impl_;
};

}  // namespace tessera
