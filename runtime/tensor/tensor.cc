#include "runtime/tensor/tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(absl::InvalidArgumentError(message));
}

// Row-major copy of strided elements of `element_bytes` bytes each.
void CopyOut(const TensorView& view, int64_t element_bytes, char* out) {
  if (view.num_elements() == 0) return;
  const char* base = static_cast<const char*>(view.data);
  std::array<int64_t, kMaxDims> index = {};
  const int64_t n = view.num_elements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < view.num_dims; ++d) {
      offset += index[d] * view.strides[d];
    }
    std::memcpy(out + i * element_bytes, base + offset * element_bytes,
                element_bytes);
    for (int d = view.num_dims - 1; d >= 0; --d) {
      if (++index[d] < view.sizes[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace

Tensor::Tensor() = default;

Tensor Tensor::View(std::shared_ptr<Storage> storage, int64_t offset,
                    const Shape& shape, DType dtype) {
  if (shape.num_dims() > kMaxDims) {
    Refuse(absl::StrCat("Tensor: at most ", kMaxDims, " dims, got ",
                        shape.ToString()));
  }
  TESSERA_CHECK((offset + shape.num_elements()) * ElementBytes(dtype) <=
                storage->num_bytes());
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.offset_ = offset;
  tensor.shape_ = shape;
  tensor.strides_ = shape.ContiguousStrides();
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::Empty(const Shape& shape, const TensorOptions& options) {
  for (int64_t size : shape.sizes()) {
    if (size < 0) Refuse("Tensor: negative size in " + shape.ToString());
  }
  const int64_t num_bytes = shape.num_elements() * ElementBytes(options.dtype);
  return View(Storage::Allocated(options.device, num_bytes), 0, shape,
              options.dtype);
}

Tensor Tensor::FromBytes(const void* data, const Shape& shape,
                         const TensorOptions& options) {
  Tensor tensor = Empty(shape, options);
  const int64_t num_bytes = tensor.num_bytes();
  if (options.device.is_meta() || num_bytes == 0) return tensor;
  Stream& stream = CurrentStream(options.device);
  void* target = tensor.data();
  AccessList access{{}, {{target, num_bytes}}};
  if (stream.mode() == StreamMode::kInline) {
    stream.Enqueue(
        "FromBytes", [&] { std::memcpy(target, data, num_bytes); }, access);
    return tensor;
  }
  const char* bytes = static_cast<const char*>(data);
  stream.Enqueue(
      "FromBytes",
      [target, copy = std::vector<char>(bytes, bytes + num_bytes)] {
        std::memcpy(target, copy.data(), copy.size());
      },
      access);
  return tensor;
}

bool Tensor::IsContiguous() const {
  if (num_elements() == 0) return true;
  int64_t expected = 1;
  for (int d = num_dims() - 1; d >= 0; --d) {
    if (shape_.sizes()[d] == 1) continue;
    if (strides_[d] != expected) return false;
    expected *= shape_.sizes()[d];
  }
  return true;
}

std::string Tensor::ToString() const {
  if (!defined()) return "undefined tensor";
  return absl::StrCat(DTypeName(dtype_), " ", shape_.ToString(), " on ",
                      device().ToString());
}

void* Tensor::data() const {
  return static_cast<char*>(storage_->data()) + offset_ * ElementBytes(dtype_);
}

TensorView Tensor::view() const {
  TensorView view;
  view.data = data();
  view.dtype = dtype_;
  view.num_dims = num_dims();
  for (int d = 0; d < num_dims(); ++d) {
    view.sizes[d] = shape_.sizes()[d];
    view.strides[d] = strides_[d];
  }
  return view;
}

Tensor Tensor::Narrow(int dim, int64_t begin, int64_t length) const {
  const int d = shape_.NormalizeDim(dim);
  if (begin < 0 || length < 0 || begin + length > shape_.sizes()[d]) {
    Refuse(absl::StrCat("Narrow: wanted [", begin, ", ", begin + length,
                        ") of dim ", d, " of ", shape_.ToString()));
  }
  Tensor result = *this;
  result.offset_ += begin * strides_[d];
  result.shape_.set_dim(d, length);
  return result;
}

Tensor Tensor::Squeeze(int dim) const {
  const int d = shape_.NormalizeDim(dim);
  if (shape_.sizes()[d] != 1) {
    Refuse(absl::StrCat("Squeeze: dim ", d, " of ", shape_.ToString(),
                        " is not 1"));
  }
  Dims sizes = shape_.sizes();
  Tensor result = *this;
  sizes.erase(sizes.begin() + d);
  result.strides_.erase(result.strides_.begin() + d);
  result.shape_ = Shape(std::span<const int64_t>(sizes));
  return result;
}

Tensor Tensor::Unsqueeze(int dim) const {
  const int d = dim < 0 ? dim + num_dims() + 1 : dim;
  if (d < 0 || d > num_dims()) {
    Refuse(absl::StrCat("Unsqueeze: dim ", dim, " of ", shape_.ToString()));
  }
  Dims sizes = shape_.sizes();
  Tensor result = *this;
  const int64_t stride = d < num_dims() ? strides_[d] * sizes[d] : 1;
  sizes.insert(sizes.begin() + d, 1);
  result.strides_.insert(result.strides_.begin() + d, stride);
  result.shape_ = Shape(std::span<const int64_t>(sizes));
  return result;
}

Tensor Tensor::Select(int dim, int64_t index) const {
  return Narrow(dim, index, 1).Squeeze(dim);
}

Tensor Tensor::Transpose(int dim_a, int dim_b) const {
  const int a = shape_.NormalizeDim(dim_a);
  const int b = shape_.NormalizeDim(dim_b);
  Tensor result = *this;
  std::swap(result.strides_[a], result.strides_[b]);
  result.shape_.set_dim(a, shape_.sizes()[b]);
  result.shape_.set_dim(b, shape_.sizes()[a]);
  return result;
}

Tensor Tensor::Permute(const std::vector<int>& dims) const {
  if (static_cast<int>(dims.size()) != num_dims()) {
    Refuse(absl::StrCat("Permute: wanted ", num_dims(), " dims, got ",
                        dims.size()));
  }
  Tensor result = *this;
  std::vector<bool> seen(dims.size());
  for (int d = 0; d < num_dims(); ++d) {
    const int from = shape_.NormalizeDim(dims[d]);
    if (seen[from]) Refuse(absl::StrCat("Permute: dim ", from, " twice"));
    seen[from] = true;
    result.shape_.set_dim(d, shape_.sizes()[from]);
    result.strides_[d] = strides_[from];
  }
  return result;
}

Tensor Tensor::Expand(const Shape& shape) const {
  const int added = shape.num_dims() - num_dims();
  if (added < 0) {
    Refuse(
        absl::StrCat("Expand: ", shape_.ToString(), " to ", shape.ToString()));
  }
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_.assign(shape.num_dims(), 0);
  for (int d = 0; d < num_dims(); ++d) {
    const int64_t size = shape_.sizes()[d];
    if (size == shape.sizes()[d + added]) {
      result.strides_[d + added] = strides_[d];
    } else if (size != 1) {
      Refuse(absl::StrCat("Expand: ", shape_.ToString(), " to ",
                          shape.ToString(), ": dim ", d, " is not 1"));
    }
  }
  return result;
}

namespace {

// Replaces the one -1 of `shape` by what is left of `num_elements`.
Shape ResolveShape(const Shape& shape, const Shape& from) {
  const int64_t num_elements = from.num_elements();
  Shape result = shape;
  int64_t known = 1;
  int unknown = -1;
  for (int d = 0; d < shape.num_dims(); ++d) {
    if (shape.sizes()[d] != -1) {
      known *= shape.sizes()[d];
    } else if (unknown >= 0) {
      Refuse("Reshape: more than one -1 in " + shape.ToString());
    } else {
      unknown = d;
    }
  }
  if (unknown >= 0 && known > 0) result.set_dim(unknown, num_elements / known);
  if (unknown >= 0 && known == 0) result.set_dim(unknown, 0);
  if (result.num_elements() != num_elements) {
    Refuse(absl::StrCat("Reshape: ", from.ToString(), " has ", num_elements,
                        " elements, ", shape.ToString(), " does not fit"));
  }
  return result;
}

// Elements at equal distances: neighbouring dims that one loop could walk.
struct Run {
  int64_t length;
  int64_t stride;
};

// From the last dim on; sizes of 1 left out.
std::vector<Run> RunsOf(const Shape& shape, const Dims& strides) {
  std::vector<Run> runs;
  for (int d = shape.num_dims() - 1; d >= 0; --d) {
    const int64_t size = shape.sizes()[d];
    if (size == 1) continue;
    if (!runs.empty() &&
        strides[d] == runs.back().stride * runs.back().length) {
      runs.back().length *= size;
    } else {
      runs.push_back({size, strides[d]});
    }
  }
  return runs;
}

}  // namespace

Tensor Tensor::Reshape(const Shape& shape) const {
  const Shape wanted = ResolveShape(shape, shape_);
  Tensor result = *this;
  result.shape_ = wanted;
  result.strides_ = wanted.ContiguousStrides();
  if (IsContiguous()) return result;
  // Each new dim must cut the inner end off a run.
  const std::vector<Run> runs = RunsOf(shape_, strides_);
  size_t next = 0;
  Run run{1, 0};
  for (int d = wanted.num_dims() - 1; d >= 0; --d) {
    const int64_t size = wanted.sizes()[d];
    if (size == 1) continue;
    if (run.length == 1) run = runs[next++];
    if (run.length % size != 0) {
      Refuse(absl::StrCat("Reshape: ", shape_.ToString(), " to ",
                          shape.ToString(),
                          ": these strides allow no view; make the tensor "
                          "contiguous first"));
    }
    result.strides_[d] = run.stride;
    run = {run.length / size, run.stride * size};
  }
  return result;
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  if (dtype_ != kDTypeOf<T>) {
    Refuse(absl::StrCat("ToVector: the tensor is ", DTypeName(dtype_),
                        ", asked for ", DTypeName(kDTypeOf<T>)));
  }
  const TensorView source = view();
  CurrentStream(device()).Synchronize();
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<uint8_t> bytes(num_elements());
    CopyOut(source, 1, reinterpret_cast<char*>(bytes.data()));
    return std::vector<bool>(bytes.begin(), bytes.end());
  } else {
    std::vector<T> values(num_elements());
    CopyOut(source, sizeof(T), reinterpret_cast<char*>(values.data()));
    return values;
  }
}

template std::vector<float> Tensor::ToVector() const;
template std::vector<bfloat16> Tensor::ToVector() const;
template std::vector<float16> Tensor::ToVector() const;
template std::vector<double> Tensor::ToVector() const;
template std::vector<int32_t> Tensor::ToVector() const;
template std::vector<int64_t> Tensor::ToVector() const;
template std::vector<uint8_t> Tensor::ToVector() const;
template std::vector<bool> Tensor::ToVector() const;

std::vector<double> Tensor::ToDoubles() const {
  return VisitDType(dtype_, [&]<typename T>() {
    std::vector<double> result;
    result.reserve(num_elements());
    for (const auto& value : ToVector<T>()) {
      if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
        result.push_back(static_cast<float>(value));
      } else {
        result.push_back(static_cast<double>(value));
      }
    }
    return result;
  });
}

double Tensor::Item() const {
  if (num_elements() != 1) {
    Refuse("Item: wanted one element, got " + shape_.ToString());
  }
  return ToDoubles()[0];
}

}  // namespace tessera
