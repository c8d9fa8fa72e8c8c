#include "runtime/tensor/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"

namespace tessera {

int Shape::NormalizeDim(int d) const {
  const int normal = d < 0 ? d + num_dims() : d;
  if (normal < 0 || normal >= num_dims()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("dim: wanted ", -num_dims(), " to ", num_dims() - 1,
                     " for shape ", ToString(), ", got ", d)));
  }
  return normal;
}

Shape::Shape() = default;

int64_t Shape::dim(int d) const { return sizes_[NormalizeDim(d)]; }

void Shape::set_dim(int d, int64_t size) { sizes_[NormalizeDim(d)] = size; }

int64_t Shape::num_elements() const {
  int64_t n = 1;
  for (int64_t size : sizes_) n *= size;
  return n;
}

Dims Shape::ContiguousStrides() const {
  Dims strides(sizes_.size());
  int64_t stride = 1;
  for (int d = num_dims() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes_[d], 1);
  }
  return strides;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(sizes_, ", "), "]");
}

Shape BroadcastShapes(const char* operation, const Shape& a, const Shape& b) {
  const int num_dims = std::max(a.num_dims(), b.num_dims());
  Dims sizes(num_dims);
  for (int d = 1; d <= num_dims; ++d) {
    const int64_t x = d <= a.num_dims() ? a.dim(-d) : 1;
    const int64_t y = d <= b.num_dims() ? b.dim(-d) : 1;
    if (x != y && x != 1 && y != 1) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat(operation, ": shapes do not broadcast: ", a.ToString(),
                       " and ", b.ToString(), " (dim ", -d, ")")));
    }
    sizes[num_dims - d] = x == 1 ? y : x;
  }
  return Shape(std::span<const int64_t>(sizes));
}

}  // namespace tessera
