#include "runtime/functions/norm.h"

#include "runtime/autograd/node.h"
#include "runtime/functions/parameter_gradient.h"
#include "runtime/ops/norm.h"

namespace tessera::functions {
namespace {

// Both norms: inputs x, weight, bias (undefined for RMS norm).
class NormNode final : public Node {
 public:
  NormNode(const char* name, const Variable& x, const Variable& weight,
           const Variable& bias, const ops::NormResult& forward)
      : name_(name),
        x_(name, x),
        weight_(name, weight),
        mean_(name, forward.mean),
        rstd_(name, forward.rstd),
        bias_dtype_(bias.defined() ? bias.dtype() : weight.dtype()) {}

  const char* name() const override { return name_; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor x = x_.Unpack();
    const Tensor weight = weight_.Unpack();
    const ops::NormResult forward = {Tensor(), mean_.Unpack(), rstd_.Unpack()};
    const ParameterGradient grad_weight(*this, 1, weight.shape(),
                                        {weight.dtype(), x.device()});
    const ParameterGradient grad_bias(*this, 2, weight.shape(),
                                      {bias_dtype_, x.device()});
    ops::NormGradients gradients;
    if (NeedsGrad(0)) {
      gradients.x = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
    }
    gradients.weight = grad_weight.buffer();
    gradients.bias = grad_bias.buffer();
    gradients.accumulate_weight = grad_weight.accumulate();
    gradients.accumulate_bias = grad_bias.accumulate();
    if (forward.mean.defined()) {
      ops::LayerNormBackward(x, weight, forward, grads[0], gradients);
    } else {
      ops::RmsNormBackward(x, weight, forward, grads[0], gradients);
    }
    return {gradients.x, grad_weight.Result(), grad_bias.Result()};
  }

  void ReleaseSaved() override {
    for (SavedTensor* saved : {&x_, &weight_, &mean_, &rstd_}) {
      saved->Free();
    }
  }

 private:
  const char* const name_;
  SavedTensor x_;
  SavedTensor weight_;
  SavedTensor mean_;
  SavedTensor rstd_;
  const DType bias_dtype_;
};

}  // namespace

Variable LayerNorm(const Variable& x, const Variable& weight,
                   const Variable& bias, double eps) {
  const Tensor bias_data = bias.defined() ? bias.data() : Tensor();
  const ops::NormResult forward =
      ops::LayerNorm(x.data(), weight.data(), bias_data, eps);
  return Record(forward.y, {x, weight, bias}, [&] {
    return std::make_shared<NormNode>("LayerNorm", x, weight, bias, forward);
  });
}

Variable RmsNorm(const Variable& x, const Variable& weight, double eps) {
  const ops::NormResult forward = ops::RmsNorm(x.data(), weight.data(), eps);
  return Record(forward.y, {x, weight, Variable()}, [&] {
    return std::make_shared<NormNode>("RmsNorm", x, weight, Variable(),
                                      forward);
  });
}

}  // namespace tessera::functions
