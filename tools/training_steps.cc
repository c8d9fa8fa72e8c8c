// The steps of a training run: taken, checked, timed and reported.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "tools/training_run.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// With --minutes: the first steps make buffers, and the rest of the time is
// for saving and what else is no step.
constexpr int64_t kNumIgnoredSteps = 3;
constexpr double kTrainingShare = 0.9;
// Gradients that are not finite at any scale are not float16's fault.
constexpr double kSmallestScale = 1.0 / 1024;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

StepResult TrainingRun::TakeStep() {
  std::vector<MicroBatch> micro_batches;
  int64_t num_counted = 0;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    num_counted += data_.train->NumCounted(sampler_->NextOfAllRanks());
    const TokenBatch batch = data_.train->Batch(sampler_->Next());
    micro_batches.push_back({batch.ids_BT, world_->rank(), world_->world_size(),
                             batch.labels_BT, batch.position_ids_BT,
                             batch.segment_starts_BT});
  }
  const StepResult result = trainer_->Step(state_.step, micro_batches,
                                           num_counted, stop_.requested());
  CheckStep(result);
  ++state_.step;
  if (result.empty) WarnOfEmptySteps();
  state_.data_position = sampler_->position();
  if (state_.step - measured_step_ == kNumIgnoredSteps &&
      measured_since_ == start_) {
    measured_since_ = Clock::now();
    measured_step_ = state_.step;
  }
  return result;
}

// A norm that is none has spoilt what would be saved after this step, unless
// the step was skipped for it.
void TrainingRun::CheckStep(const StepResult& result) const {
  const bool good = std::isfinite(result.grad_norm) ||
                    (result.overflowed && scaler_->scale() >= kSmallestScale);
  if (good && std::isfinite(result.loss)) return;
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "step ", state_.step + 1, ": the loss is ", result.loss,
      ", the norm of the gradient ", result.grad_norm,
      "; lower --lr, or resume from an earlier checkpoint",
      options_.sharding.mixed_precision.param_dtype == DType::kFloat16
          ? "; float16 holds no number above 65504: "
            "--mixed_precision=bf16 does"
          : "")));
}

void TrainingRun::WarnOfEmptySteps() {
  if (!first() || std::exchange(warned_of_empty_steps_, true)) return;
  std::fprintf(stderr,
               "warning: step %d: of its batch no token counts, so it changes "
               "nothing; metrics.jsonl marks such steps; a larger --batch or "
               "--seq avoids them\n",
               static_cast<int>(state_.step));
}

absl::Status TrainingRun::ChooseNumSteps() {
  const Clock::time_point now = Clock::now();
  const double step_seconds =
      Seconds(measured_since_, now) /
      static_cast<double>(std::max<int64_t>(state_.step - measured_step_, 1));
  const double left =
      options_.minutes * 60 * kTrainingShare - Seconds(start_, now);
  const auto mine =
      state_.step + static_cast<int64_t>(std::max(left, 0.0) / step_seconds);
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world_->AllGatherBytes(absl::StrCat(mine), "steps"));
  TESSERA_CHECK(absl::SimpleAtoi(all[0], &num_steps_));
  steps_are_chosen_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> TrainingRun::Validate() {
  const Clock::time_point before = Clock::now();
  const std::optional<double> loss = trainer_->Validate(
      *data_.validation, options_.batch, options_.eval_batches);
  if (loss.has_value() && !std::isfinite(*loss)) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", state_.step, ": the validation loss is ", *loss,
                     "; lower --lr, or resume from an earlier checkpoint"));
  }
  measured_since_ += Clock::now() - before;  // Not part of the speed.
  return loss;
}

absl::Status TrainingRun::Report(const StepResult& result) {
  StepMetrics metrics;
  const bool last = state_.step == num_steps_ || result.stop;
  if (last ||
      (options_.eval_every > 0 && state_.step % options_.eval_every == 0)) {
    ASSIGN_OR_RETURN(metrics.validation_loss, Validate());
  }
  if (!first()) return absl::OkStatus();
  const double seconds = Seconds(measured_since_, Clock::now());
  const auto num_steps = static_cast<double>(state_.step - measured_step_);
  if (num_steps > 0 && seconds > 0) steps_per_second_ = num_steps / seconds;
  metrics.step = state_.step;
  metrics.num_steps = num_steps_;
  metrics.loss = result.loss;
  metrics.learning_rate = result.learning_rate;
  metrics.grad_norm = result.grad_norm;
  if (scaler_ != nullptr) metrics.loss_scale = scaler_->scale();
  if (result.empty) metrics.skipped = "no token counts";
  if (result.overflowed) metrics.skipped = "the gradient is not finite";
  metrics.tokens_per_second = steps_per_second_ *
                              static_cast<double>(options_.batch) *
                              data_.tokens_per_row;
  metrics.flops_share = metrics.tokens_per_second *
                        model_->FlopsPerToken(options_.seq) / peak_flops_;
  metrics.memory_bytes = AllocatorOf(CurrentDevice()).stats().peak_bytes;
  metrics.seconds_left =
      steps_per_second_ > 0
          ? static_cast<double>(num_steps_ - state_.step) / steps_per_second_
          : 0;
  RETURN_IF_ERROR(metrics_->Append(MetricsJson(metrics)));
  if (last || state_.step % options_.log_every == 0 ||
      metrics.validation_loss.has_value()) {
    std::printf("%s\n", ProgressLine(metrics).c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace tessera
