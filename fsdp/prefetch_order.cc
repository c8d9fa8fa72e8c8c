#include "fsdp/prefetch_order.h"

#include <algorithm>

namespace tessera {

void PrefetchOrder::BeginIteration() {
  forward_at_ = 0;
  EndBackward();
}

void PrefetchOrder::EndBackward() {
  post_forward_.clear();
  backward_at_.reset();
}

std::optional<int> PrefetchOrder::AfterInForward(int unit) {
  const auto it =
      std::find(forward_.begin() + static_cast<int64_t>(forward_at_),
                forward_.end(), unit);
  if (it == forward_.end()) return std::nullopt;
  forward_at_ = it - forward_.begin();
  if (it + 1 == forward_.end()) return std::nullopt;
  return *(it + 1);
}

std::optional<int> PrefetchOrder::BeforeInBackward(int unit) {
  int64_t at =
      backward_at_.value_or(static_cast<int64_t>(post_forward_.size()) - 1);
  while (at >= 0 && post_forward_[at] != unit) --at;
  if (at <= 0) return std::nullopt;
  backward_at_ = at - 1;
  return post_forward_[at - 1];
}

}  // namespace tessera
