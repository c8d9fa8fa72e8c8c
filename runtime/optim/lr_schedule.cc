#include "runtime/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<LrDecay> ParseLrDecay(const std::string& name) {
  if (name == "constant") return LrDecay::kConstant;
  if (name == "linear") return LrDecay::kLinear;
  if (name == "cosine") return LrDecay::kCosine;
  return absl::InvalidArgumentError(absl::StrCat(
      "a learning rate's decay is constant, linear or cosine, not \"", name,
      "\""));
}

double LearningRate(const LrSchedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.decay == LrDecay::kConstant) return schedule.peak;
  if (step >= schedule.total_steps) return schedule.minimum;
  const double u =
      static_cast<double>(step - schedule.warmup_steps) /
      static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  const double left = schedule.decay == LrDecay::kLinear
                          ? 1 - u
                          : (1 + std::cos(std::numbers::pi * u)) / 2;
  return schedule.minimum + (schedule.peak - schedule.minimum) * left;
}

absl::Status Validate(const LrSchedule& schedule) {
  const auto invalid = [](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate schedule: ", what));
  };
  // Written so that NaN is refused too.
  if (!(schedule.peak >= 0)) {
    return invalid(absl::StrCat("peak must be 0 or more, not ", schedule.peak));
  }
  if (schedule.warmup_steps < 0) {
    return invalid(absl::StrCat("warmup_steps must be 0 or more, not ",
                                schedule.warmup_steps));
  }
  if (schedule.decay == LrDecay::kConstant) return absl::OkStatus();
  if (!(schedule.minimum >= 0 && schedule.minimum <= schedule.peak)) {
    return invalid(absl::StrCat("minimum must be from 0 to the peak, ",
                                schedule.peak, ", not ", schedule.minimum));
  }
  if (schedule.total_steps < std::max<int64_t>(schedule.warmup_steps, 1)) {
    return invalid(absl::StrCat("total_steps must be 1 or more and hold ",
                                schedule.warmup_steps, " warmup_steps, and is ",
                                schedule.total_steps));
  }
  return absl::OkStatus();
}

}  // namespace tessera
