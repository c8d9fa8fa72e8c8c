#include "runtime/nn/linear.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {

void AffineLayer::AddLowRank(const LowRankOptions& options,
                             const std::string& name) {
  if (options.rank <= 0 || low_rank_ != nullptr) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        name,
        ": wanted a layer without a term of low rank and a positive "
        "rank; got rank ",
        options.rank, low_rank_ != nullptr ? " beside another" : "")));
  }
  auto term =
      std::make_unique<LowRankTerm>(in_features_, out_features_, options, name);
  RegisterModule("lora_dropout", term->dropout);
  RegisterModule("lora_A", term->lora_a);
  RegisterModule("lora_B", term->lora_b);
  low_rank_ = std::move(term);
}

void AffineLayer::MergeLowRank() {
  if (low_rank_ == nullptr) return;
  const Tensor& weight = weight_.data();
  const DType dtype =
      weight.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  Tensor term = low_rank_->Delta(dtype);
  if (layout_ == functions::WeightLayout::kInOut) term = term.Transpose(0, 1);
  ops::Copy(ops::Add(ops::Cast(weight, dtype), term), weight);
  low_rank_.reset();
}

Variable AffineLayer::Apply(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        const Variable y = functions::Linear(input, weight_, bias_, layout_);
        return low_rank_ == nullptr ? y : low_rank_->AddTo(y, input);
      },
      x);
}

Linear::Linear(int64_t in_features, int64_t out_features,
               const LinearOptions& options)
    : AffineLayer("Linear", in_features, out_features,
                  functions::WeightLayout::kOutIn),
      options_(options) {
  weight_ = RegisterParameter("weight", {out_features, in_features});
  if (options.bias) bias_ = RegisterParameter("bias", {out_features});
}

Linear::Linear(const Variable& weight)
    : AffineLayer("Linear", weight.size(1), weight.size(0),
                  functions::WeightLayout::kOutIn),
      options_{.bias = false},
      tied_(true) {
  weight_ = RegisterParameter("weight", weight);
}

Variable Linear::operator()(const Variable& x) { return Apply(x); }

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
    : AffineLayer("Conv1D", in_features, out_features,
                  functions::WeightLayout::kInOut),
      init_stddev_(init_stddev) {
  weight_ = RegisterParameter("weight", {in_features, out_features});
  bias_ = RegisterParameter("bias", {out_features});
}

Variable Conv1D::operator()(const Variable& x) { return Apply(x); }

void Conv1D::ResetParameters(const Initializer& initializer) {
  initializer.Normal(weight_, "weight", 0.0, init_stddev_);
  initializer.Constant(bias_, 0.0);
}

}  // namespace tessera
