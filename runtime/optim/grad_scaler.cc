#include "runtime/optim/grad_scaler.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/optimizer.h"

namespace tessera {
namespace {

void Check(bool holds, const std::string& what) {
  if (holds) return;
  throw Error(absl::InvalidArgumentError("GradScaler: " + what));
}

[[noreturn]] void OutOfOrder(const char* what) {
  throw Error(
      absl::FailedPreconditionError(absl::StrCat("GradScaler: ", what)));
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, ReduceFlag reduce)
    : options_(options),
      reduce_(std::move(reduce)),
      state_{options.init_scale, 0} {
  Check(options.init_scale > 0,
        absl::StrCat("init_scale must be above 0, not ", options.init_scale));
  Check(options.growth_factor > 1,
        absl::StrCat("growth_factor must be above 1, not ",
                     options.growth_factor));
  Check(options.backoff_factor > 0 && options.backoff_factor < 1,
        absl::StrCat("backoff_factor must be between 0 and 1, not ",
                     options.backoff_factor));
  Check(options.growth_interval >= 1,
        absl::StrCat("growth_interval must be 1 or more, not ",
                     options.growth_interval));
}

Variable GradScaler::Scale(const Variable& loss) const {
  return options_.enabled ? functions::Scale(loss, state_.scale) : loss;
}

void GradScaler::Unscale(Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (const auto found = progress_.find(&optimizer); found != progress_.end()) {
    OutOfOrder(found->second.stepped
                   ? "Unscale after Step of the same optimizer; call Update() "
                     "before the next backward"
                   : "Unscale called twice on one optimizer; once between two "
                     "calls of Update()");
  }
  std::vector<Tensor> gradients;
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const OptimizerParameter& p : group.parameters) {
      const Tensor& grad = p.variable.grad();
      if (grad.defined()) gradients.push_back(grad);
    }
  }
  const Device device =
      optimizer.groups().front().parameters.front().variable.device();
  Tensor found_inf = ops::Zeros({1}, {DType::kFloat32, device});
  ops::Unscale(gradients, 1 / state_.scale, found_inf);
  if (reduce_) reduce_(found_inf);
  progress_[&optimizer].found_inf = found_inf;
}

bool GradScaler::FoundInf(const Progress& progress) const {
  return progress.found_inf.Item() != 0;
}

bool GradScaler::Step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.Step();
    return true;
  }
  if (!progress_.contains(&optimizer)) Unscale(optimizer);
  Progress& progress = progress_.at(&optimizer);
  if (progress.stepped) {
    OutOfOrder("Step called twice on one optimizer; call Update() between");
  }
  progress.stepped = true;
  if (FoundInf(progress)) {
    optimizer.SetGradScale(Tensor());
    return false;
  }
  optimizer.Step();
  return true;
}

bool GradScaler::StepFused(Optimizer& optimizer, bool finite,
                           double coefficient) {
  if (progress_.contains(&optimizer)) {
    OutOfOrder("StepFused after Unscale or Step of the same optimizer");
  }
  if (options_.enabled) {
    progress_[&optimizer] = {ops::Full({1}, finite ? 0.0 : 1.0), true};
    if (!finite) return false;
  }
  const Device device =
      optimizer.groups().front().parameters.front().variable.device();
  optimizer.SetGradScale(
      ops::Full({1}, coefficient / scale(), {DType::kFloat32, device}));
  optimizer.Step();
  return true;
}

void GradScaler::Update() {
  if (!options_.enabled) return;
  if (progress_.empty()) {
    OutOfOrder("Update without a Step or Unscale since the last one");
  }
  bool found_inf = false;
  for (const auto& [optimizer, progress] : progress_) {
    found_inf = found_inf || FoundInf(progress);
  }
  progress_.clear();
  if (found_inf) {
    state_ = {state_.scale * options_.backoff_factor, 0};
  } else if (++state_.good_steps == options_.growth_interval) {
    state_ = {state_.scale * options_.growth_factor, 0};
  }
}

}  // namespace tessera
