#include "runtime/nn/linear.h"

#include <cmath>

#include "runtime/functions/matmul.h"

namespace tessera {

Linear::Linear(int64_t in_features, int64_t out_features,
               const LinearOptions& options)
    : Module("Linear"), options_(options), in_features_(in_features) {
  weight_ = RegisterParameter("weight", {out_features, in_features});
  if (options.bias) bias_ = RegisterParameter("bias", {out_features});
}

Linear::Linear(const Variable& weight)
    : Module("Linear"),
      options_{.bias = false},
      in_features_(weight.size(1)),
      tied_(true),
      weight_(weight) {
  RegisterParameter("weight", weight);
}

Variable Linear::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        return functions::Linear(input, weight_, bias_,
                                 functions::WeightLayout::kOutIn);
      },
      x);
}

void Linear::ResetParameters(const Initializer& initializer) {
  if (tied_) return;  // Its owner sets it.
  if (options_.init_stddev.has_value()) {
    initializer.Normal(weight_, "weight", 0.0, *options_.init_stddev);
    if (bias_.defined()) initializer.Constant(bias_, 0.0);
    return;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(in_features_));
  initializer.Uniform(weight_, "weight", -bound, bound);
  if (bias_.defined()) initializer.Uniform(bias_, "bias", -bound, bound);
}

Conv1D::Conv1D(int64_t in_features, int64_t out_features, double init_stddev)
    : Module("Conv1D"), init_stddev_(init_stddev) {
  weight_ = RegisterParameter("weight", {in_features, out_features});
  bias_ = RegisterParameter("bias", {out_features});
}

Variable Conv1D::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        return functions::Linear(input, weight_, bias_,
                                 functions::WeightLayout::kInOut);
      },
      x);
}

void Conv1D::ResetParameters(const Initializer& initializer) {
  initializer.Normal(weight_, "weight", 0.0, init_stddev_);
  initializer.Constant(bias_, 0.0);
}

}  // namespace tessera
