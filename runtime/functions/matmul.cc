#include "runtime/functions/matmul.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/autograd/node.h"
#include "runtime/functions/parameter_gradient.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/rows.h"

namespace tessera::functions {
namespace {

Tensor Transposed(const Tensor& x) { return x.Transpose(-2, -1); }

class MatMulNode final : public Node {
 public:
  // Each operand is kept for the other's gradient only.
  MatMulNode(const Variable& a, const Variable& b) : one_b_(b.num_dims() == 2) {
    if (b.requires_grad()) a_ = SavedTensor("MatMul", a);
    if (a.requires_grad()) b_ = SavedTensor("MatMul", b);
  }

  const char* name() const override { return "MatMul"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor& grad = grads[0];
    Tensor grad_a, grad_b;
    if (NeedsGrad(0)) grad_a = ops::MatMul(grad, Transposed(b_.Unpack()));
    if (NeedsGrad(1)) {
      const Tensor a = a_.Unpack();
      grad_b = one_b_
                   ? ops::MatMul(Transposed(ops::AsRows(a)), ops::AsRows(grad))
                   : ops::MatMul(Transposed(a), grad);
    }
    return {grad_a, grad_b};
  }

  void ReleaseSaved() override {
    a_.Free();
    b_.Free();
  }

 private:
  SavedTensor a_;
  SavedTensor b_;
  const bool one_b_;  // For all matrices of a batch.
};

// Inputs x, weight, bias.
class LinearNode final : public Node {
 public:
  LinearNode(const Variable& x, const Variable& weight, const Variable& bias,
             WeightLayout layout)
      : weight_shape_(weight.shape()),
        weight_options_{weight.dtype(), weight.device()},
        layout_(layout) {
    if (weight.requires_grad()) x_ = SavedTensor("Linear", x);
    if (x.requires_grad()) weight_ = SavedTensor("Linear", weight);
    if (bias.defined()) bias_dtype_ = bias.dtype();
  }

  const char* name() const override { return "Linear"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor& grad = grads[0];
    const ParameterGradient weight(*this, 1, weight_shape_, weight_options_);
    if (weight.buffer().defined()) WriteWeightGradient(grad, weight);
    const ParameterGradient bias(*this, 2, {grad.size(-1)},
                                 {bias_dtype_, grad.device()});
    if (bias.buffer().defined()) {
      ops::BiasGradientInto(grad, bias.buffer(), bias.accumulate());
    }
    return {NeedsGrad(0) ? InputGradient(grad) : Tensor(), weight.Result(),
            bias.Result()};
  }

  void ReleaseSaved() override {
    x_.Free();
    weight_.Free();
  }

 private:
  Tensor InputGradient(const Tensor& grad) {
    const Tensor saved = weight_.Unpack();
    const Tensor w =
        layout_ == WeightLayout::kOutIn ? saved : Transposed(saved);
    if (grad.num_dims() > 1) return ops::MatMul(grad, w);
    return ops::MatMul(grad.Unsqueeze(0), w).Squeeze(0);
  }

  void WriteWeightGradient(const Tensor& grad,
                           const ParameterGradient& weight) {
    const Tensor x = ops::AsRows(x_.Unpack());
    const Tensor dy = ops::AsRows(grad);
    const ops::MatMulOptions options = {.accumulate = weight.accumulate()};
    if (layout_ == WeightLayout::kOutIn) {
      ops::MatMulInto(Transposed(dy), x, weight.buffer(), options);
    } else {
      ops::MatMulInto(Transposed(x), dy, weight.buffer(), options);
    }
  }

  SavedTensor x_;
  SavedTensor weight_;
  const Shape weight_shape_;
  const TensorOptions weight_options_;
  DType bias_dtype_ = DType::kFloat32;
  const WeightLayout layout_;
};

void CheckLinear(const Variable& x, const Variable& weight,
                 const Variable& bias, WeightLayout layout) {
  const bool out_in = layout == WeightLayout::kOutIn;
  const bool matrices = x.num_dims() >= 1 && weight.num_dims() == 2;
  if (matrices && x.size(-1) == weight.size(out_in ? 1 : 0) &&
      (!bias.defined() || bias.shape() == Shape{weight.size(out_in ? 0 : 1)})) {
    return;
  }
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "Linear: wants x [..., in], weight ", out_in ? "[out, in]" : "[in, out]",
      " and bias [out] or none; got x ", x.data().ToString(), ", weight ",
      weight.data().ToString(), ", bias ",
      bias.defined() ? bias.data().ToString() : std::string("none"))));
}

Tensor LinearForward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     WeightLayout layout) {
  const Tensor w = layout == WeightLayout::kOutIn ? Transposed(weight) : weight;
  Shape shape = x.shape();
  shape.set_dim(-1, w.size(-1));
  Tensor y = Tensor::Empty(shape, {x.dtype(), x.device()});
  const Tensor row = x.num_dims() == 1 ? x.Unsqueeze(0) : x;
  ops::MatMulInto(row, w, x.num_dims() == 1 ? y.Unsqueeze(0) : y,
                  {.bias = bias});
  return y;
}

}  // namespace

Variable MatMul(const Variable& a, const Variable& b) {
  return Record(ops::MatMul(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<MatMulNode>(a, b); });
}

Variable Linear(const Variable& x, const Variable& weight, const Variable& bias,
                WeightLayout layout) {
  CheckLinear(x, weight, bias, layout);
  const Tensor bias_data = bias.defined() ? bias.data() : Tensor();
  return Record(LinearForward(x.data(), weight.data(), bias_data, layout),
                {x, weight, bias}, [&] {
                  return std::make_shared<LinearNode>(x, weight, bias, layout);
                });
}

}  // namespace tessera::functions
