// Memory with a shape. Knows nothing of gradients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor_view.h"
#include "runtime/device/device.h"
#include "runtime/tensor/shape.h"
#include "runtime/tensor/storage.h"

namespace tessera {

struct TensorOptions {
  DType dtype = DType::kFloat32;
  Device device = CurrentDevice();
};

// A handle: copies share memory. Views (Narrow, Transpose, Select, Reshape of
// contiguous memory) share it too. A default-made tensor is undefined.
// Mathematics is in runtime/ops. Errors are thrown.
class Tensor {
 public:
  Tensor();  // Not inline, see Shape().

  // Memory is not initialised.
  static Tensor Empty(const Shape& shape, const TensorOptions& options = {});
  // A copy of host values, made in the order of the compute stream.
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values, const Shape& shape,
                           Device device = CurrentDevice());
  static Tensor FromBytes(const void* data, const Shape& shape,
                          const TensorOptions& options);
  // A view of `storage` that starts `offset` elements into it.
  static Tensor View(std::shared_ptr<Storage> storage, int64_t offset,
                     const Shape& shape, DType dtype);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int num_dims() const { return shape_.num_dims(); }
  int64_t size(int d) const { return shape_.dim(d); }
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t num_bytes() const { return num_elements() * ElementBytes(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  bool is_meta() const { return device().is_meta(); }
  bool IsContiguous() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  int64_t storage_offset() const { return offset_; }  // In elements.
  std::string ToString() const;  // "float32 [2, 3] on cpu:0"

  // Resolves the pointer now; throws when the storage is released.
  TensorView view() const;
  // The first element's address; throws as view().
  void* data() const;
  template <typename T>
  T* data() const {
    return static_cast<T*>(data());
  }

  // Views.
  Tensor Narrow(int dim, int64_t begin, int64_t length) const;
  Tensor Select(int dim, int64_t index) const;  // Removes `dim`.
  Tensor Transpose(int dim_a, int dim_b) const;
  Tensor Permute(const std::vector<int>& dims) const;
  Tensor Expand(const Shape& shape) const;  // Stride 0 where a size was 1.
  Tensor Unsqueeze(int dim) const;
  Tensor Squeeze(int dim) const;
  // The same elements in another shape, one size may be -1; throws when the
  // strides do not allow a view (call ops::Contiguous first).
  Tensor Reshape(const Shape& shape) const;
  Tensor Flatten() const { return Reshape({-1}); }

  // Host copies of the elements in row-major order; wait for the compute
  // stream. ToVector<T> demands T's dtype; ToDoubles converts any dtype.
  template <typename T>
  std::vector<T> ToVector() const;
  std::vector<double> ToDoubles() const;
  double Item() const;  // Of a tensor with one element.

 private:
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;
  Shape shape_;
  Dims strides_;
  DType dtype_ = DType::kFloat32;
};

template <typename T>
Tensor Tensor::FromVector(const std::vector<T>& values, const Shape& shape,
                          Device device) {
  TESSERA_CHECK(static_cast<int64_t>(values.size()) == shape.num_elements());
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<uint8_t> bytes(values.begin(), values.end());
    return FromBytes(bytes.data(), shape, {DType::kBool, device});
  } else {
    return FromBytes(values.data(), shape, {kDTypeOf<T>, device});
  }
}

}  // namespace tessera
