// Sizes of a tensor's dims.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"

namespace tessera {

using Dims = absl::InlinedVector<int64_t, 4>;

class Shape {
 public:
  // Of a scalar. Not inline: gcc 12 takes the copy of an empty list's unused
  // bytes for a use of what was never set.
  Shape();
  Shape(std::initializer_list<int64_t> sizes) : sizes_(sizes) {}
  explicit Shape(std::span<const int64_t> sizes)
      : sizes_(sizes.begin(), sizes.end()) {}

  int num_dims() const { return static_cast<int>(sizes_.size()); }
  // Size of dim `d`; negative d counts from the end. Throws when out of range.
  int64_t dim(int d) const;
  void set_dim(int d, int64_t size);
  int64_t num_elements() const;
  const Dims& sizes() const { return sizes_; }
  // 0 <= result < num_dims; throws when out of range.
  int NormalizeDim(int d) const;
  Dims ContiguousStrides() const;
  void Append(int64_t size) { sizes_.push_back(size); }

  std::string ToString() const;  // "[2, 3]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  Dims sizes_;
};

// The shape of an elementwise result of `a` and `b` by the usual broadcast
// rule; throws naming `operation` when there is none.
Shape BroadcastShapes(const char* operation, const Shape& a, const Shape& b);

}  // namespace tessera
