#include "fsdp/agreed_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"

namespace tessera {

int64_t AgreedOrder::PositionOf(int unit) const {
  const auto it = std::find(units_.begin(), units_.end(), unit);
  TESSERA_CHECK(it != units_.end());
  return it - units_.begin();
}

void AgreedOrder::BeginForward(int64_t now) {
  began_at_ = now;
  next_ = 0;
}

void AgreedOrder::ReachForward(int unit) {
  const int64_t position = PositionOf(unit);
  if (position < next_) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "a unit below a ", module_->class_name(),
        " that is marked ranks_may_differ runs out of the order of "
        "registration, or twice; run its children in that order, once each")));
  }
  while (next_ < position) join_forward_(units_[next_++]);
  next_ = position + 1;
}

void AgreedOrder::EndForward() {
  const auto n = static_cast<int64_t>(units_.size());
  while (next_ < n) join_forward_(units_[next_++]);
  left_ = n;
  pending_backward_ = GradEnabled();
}

void AgreedOrder::ReachBackward(int unit) {
  const int64_t position = PositionOf(unit);
  while (left_ > position + 1) join_backward_(units_[--left_]);
  left_ = std::min(left_, position);
}

void AgreedOrder::EndBackward() {
  if (!pending_backward_) return;
  pending_backward_ = false;
  while (left_ > 0) join_backward_(units_[--left_]);
}

void AgreedOrder::Forget() {
  pending_backward_ = false;
  left_ = next_ = 0;
}

}  // namespace tessera
