#include "fsdp/agreed_order.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {

int64_t AgreedOrder::PositionOf(int unit) const {
  const auto it = std::find(units_.begin(), units_.end(), unit);
  TESSERA_CHECK(it != units_.end());
  return it - units_.begin();
}

void AgreedOrder::BeginForward(bool training, int64_t now, int64_t scope) {
  training_ = training;
  next_ = 0;
  if (!training) return;
  began_at_ = now;
  scope_ = scope;
}

void AgreedOrder::ReachForward(int unit) {
  const int64_t position = PositionOf(unit);
  if (position < next_) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "a unit below a ", module_->class_name(),
        " that is marked ranks_may_differ runs out of the order of "
        "registration, or twice; run its children in that order, once each")));
  }
  while (next_ < position) actions_.join_forward(units_[next_++]);
  next_ = position + 1;
}

void AgreedOrder::EndForward() {
  while (next_ < num_units()) actions_.join_forward(units_[next_++]);
  if (!training_) return;
  ++num_pending_;
  ++num_since_backward_;
}

void AgreedOrder::BeginBackward() {
  passed_ = held_ = false;
  holds_ = num_pending_ > 1;
  num_since_backward_ = 0;
  left_ = num_units();
}

void AgreedOrder::ReachBackward(int unit) {
  if (holds_) {
    Hold();
    return;
  }
  const int64_t position = PositionOf(unit);
  while (left_ > position + 1) actions_.join_backward(units_[--left_]);
  left_ = std::min(left_, position);
}

void AgreedOrder::Hold() {
  if (std::exchange(held_, true)) return;
  while (left_ > 0) actions_.hold(units_[--left_]);
}

void AgreedOrder::LeaveBackward() {
  if (holds_) {
    Hold();
  } else {
    EndBackward();
  }
}

void AgreedOrder::EndBackward() {
  if (!pending_backward()) return;
  --num_pending_;
  passed_ = true;
  if (!holds_) {
    while (left_ > 0) actions_.join_backward(units_[--left_]);
    return;
  }
  Hold();
  for (int64_t i = num_units(); i > 0; --i) actions_.finish(units_[i - 1]);
}

void AgreedOrder::Forget() {
  num_pending_ = 0;
  recomputing_ = 0;
  next_ = 0;
  BeginBackward();
}

}  // namespace tessera
