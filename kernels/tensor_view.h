// Borrowed memory with a shape: what kernels work on.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/dtype.h"

namespace tessera {

inline constexpr int kMaxDims = 6;

// Owns nothing. Strides are in elements and may be 0 (an expanded dim).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int num_dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  std::array<int64_t, kMaxDims> strides = {};

  bool defined() const { return data != nullptr; }

  int64_t num_elements() const {
    int64_t n = 1;
    for (int d = 0; d < num_dims; ++d) n *= sizes[d];
    return n;
  }
  // Size of dim `d`; negative d counts from the end.
  int64_t size(int d) const { return sizes[d < 0 ? d + num_dims : d]; }
  int64_t stride(int d) const { return strides[d < 0 ? d + num_dims : d]; }

  // Row-major without gaps. Tensors of at most one element always are.
  bool IsContiguous() const {
    int64_t expected = 1;
    for (int d = num_dims - 1; d >= 0; --d) {
      if (sizes[d] == 1) continue;
      if (sizes[d] == 0) return true;
      if (strides[d] != expected) return false;
      expected *= sizes[d];
    }
    return true;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace tessera
