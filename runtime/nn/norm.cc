#include "runtime/nn/norm.h"

#include "runtime/functions/norm.h"

namespace tessera {

LayerNorm::LayerNorm(int64_t size, double eps)
    : Module("LayerNorm"), eps_(eps) {
  weight_ = RegisterParameter("weight", {size});
  bias_ = RegisterParameter("bias", {size});
}

Variable LayerNorm::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        return functions::LayerNorm(input, weight_, bias_, eps_);
      },
      x);
}

void LayerNorm::ResetParameters(const Initializer& initializer) {
  initializer.Constant(weight_, 1.0);
  initializer.Constant(bias_, 0.0);
}

RmsNorm::RmsNorm(int64_t size, double eps) : Module("RMSNorm"), eps_(eps) {
  weight_ = RegisterParameter("weight", {size});
}

Variable RmsNorm::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        return functions::RmsNorm(input, weight_, eps_);
      },
      x);
}

void RmsNorm::ResetParameters(const Initializer& initializer) {
  initializer.Constant(weight_, 1.0);
}

}  // namespace tessera
