// Which unit to gather next, before it is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

// Forward follows the order of the first iteration; backward the post-forward
// order of this one, from its end. A wrong guess costs time, never a value.
class PrefetchOrder {
 public:
  bool knows_forward() const { return !forward_.empty(); }
  void set_forward(std::vector<int> units) { forward_ = std::move(units); }

  void BeginIteration();
  // A forward of the unit has ended.
  void Ran(int unit) { post_forward_.push_back(unit); }
  void EndBackward();

  // The unit after this one, in forward.
  std::optional<int> AfterInForward(int unit);
  // The unit that ran before this one, in backward.
  std::optional<int> BeforeInBackward(int unit);

 private:
  std::vector<int> forward_;
  size_t forward_at_ = 0;
  std::vector<int> post_forward_;
  std::optional<int64_t> backward_at_;  // In post_forward_.
};

}  // namespace tessera
