// Boxes of elements in a tensor: the pieces that a sharded tensor is stored in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/tensor/shape.h"

namespace tessera {

// Elements offsets[d] <= i_d < offsets[d] + sizes[d] of each dimension d.
struct TensorBox {
  Dims offsets;
  Dims sizes;

  int64_t num_elements() const;
  std::string ToString() const;  // "[0, 3] + [2, 3]"
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
};

TensorBox WholeBox(const Shape& shape);

// What two boxes of one tensor have in common; nothing of one dimension where
// there is none.
TensorBox Intersect(const TensorBox& a, const TensorBox& b);

// Elements [begin, begin + length) in row-major order as boxes, in order, each
// of which is one run of the tensor's elements.
std::vector<TensorBox> BoxesOfRange(const Shape& shape, int64_t begin,
                                    int64_t length);

// Calls `copy(begin in from, begin in to, length)` for each run of elements
// that box `part` is in both of the boxes `from` and `to`, which contain it and
// are stored in row-major order.
void ForEachRun(const TensorBox& part, const TensorBox& from,
                const TensorBox& to,
                const std::function<void(int64_t, int64_t, int64_t)>& copy);

// OK when the boxes lie in the tensor, do not overlap, and leave nothing out.
// Empty boxes are fine.
absl::Status CheckBoxesCover(const Shape& shape,
                             const std::vector<const TensorBox*>& boxes);

}  // namespace tessera
