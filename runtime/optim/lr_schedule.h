// The learning rate as a function of the step alone, so that a resumed run has
// the rates of the run that never stopped.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

enum class LrDecay { kConstant, kLinear, kCosine };

// "constant", "linear", "cosine".
absl::StatusOr<LrDecay> ParseLrDecay(const std::string& name);

struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  double peak = 1e-3;
  double minimum = 0;        // Where decay ends; unused by kConstant.
  int64_t warmup_steps = 0;  // Rising in a line to `peak`.
  int64_t total_steps = 0;   // With the warm-up; unused by kConstant.
};

// The rate of the step numbered `step` from 0.
//
// While step < warmup_steps: peak * (step + 1) / warmup_steps. After it, with
// u = (step - warmup_steps) / (total_steps - warmup_steps) in [0, 1]:
//   constant: peak
//   linear:   minimum + (peak - minimum) * (1 - u)
//   cosine:   minimum + (peak - minimum) * (1 + cos(pi * u)) / 2
// From total_steps on it is `minimum`.
double LearningRate(const LrSchedule& schedule, int64_t step);

// An error that names the field when numbers are negative, the minimum is above
// the peak, or the warm-up is longer than a decay's total.
absl::Status Validate(const LrSchedule& schedule);

}  // namespace tessera
