// Loss scaling, so that small gradients survive float16.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "runtime/autograd/variable.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval =
      2000;             // Good steps in a row before the scale grows.
  bool enabled = true;  // If not, every call does nothing but step.
};

// What resuming a run needs.
struct GradScalerState {
  double scale;
  int64_t good_steps;  // In a row, since the scale last changed.
};

// A step:
//
//   scaler.Scale(loss).Backward();
//   scaler.Unscale(optimizer);  // Only if gradients are looked at or clipped.
//   scaler.Step(optimizer);
//   scaler.Update();
//
// A step whose gradients are not all finite is skipped, and the scale falls by
// backoff_factor; after growth_interval good steps it rises by growth_factor.
// With several optimizers each is unscaled and stepped, then one Update.
//
// Step waits for the device, once an optimizer.
class GradScaler {
 public:
  // Makes `found_inf` (float32, one element, not 0 where a gradient of this
  // rank was not finite) the largest of all ranks'. Called once an optimizer by
  // every rank, also by one without gradients.
  using ReduceFlag = std::function<void(Tensor& found_inf)>;

  // Throws Error(kInvalidArgument) for a scale that is not positive, a growth
  // factor of 1 or less, a backoff factor outside (0, 1), an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {},
                      ReduceFlag reduce = nullptr);

  // `loss` times the scale.
  Variable Scale(const Variable& loss) const;
  // Divides all gradients of `optimizer` by the scale. Throws
  // Error(kFailedPrecondition) when called twice between two Updates, or after
  // Step.
  void Unscale(Optimizer& optimizer);
  // Unscales unless that was done, then steps unless a gradient of any rank
  // was not finite. Returns whether it stepped. A gradient scale that was set
  // for a skipped step is dropped. Throws as Unscale when called twice.
  bool Step(Optimizer& optimizer);
  // In place of both, without a pass of its own over the gradients: the
  // optimizer multiplies them by `coefficient` (of clipping) over the scale
  // while it reads them. `finite`: whether those of all ranks are, as their
  // norm says; it has to be the same on all ranks. Returns whether it stepped.
  bool StepFused(Optimizer& optimizer, bool finite, double coefficient = 1);
  // Chooses the next scale. Throws Error(kFailedPrecondition) when nothing was
  // unscaled since the last one.
  void Update();

  double scale() const { return options_.enabled ? state_.scale : 1; }
  const GradScalerOptions& options() const { return options_; }
  GradScalerState state() const { return state_; }
  void set_state(const GradScalerState& state) { state_ = state; }

 private:
  struct Progress {
    Tensor found_inf;
    bool stepped = false;
  };
  bool FoundInf(const Progress& progress) const;

  const GradScalerOptions options_;
  const ReduceFlag reduce_;
  GradScalerState state_;
  std::map<const Optimizer*, Progress> progress_;  // Since the last Update.
};

}  // namespace tessera
