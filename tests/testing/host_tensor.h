// A TensorView with memory of its own, for tests of kernels without a runtime.
#pragma once

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/kernel.h"
#include "kernels/status.h"
#include "kernels/tensor_view.h"

namespace tessera {

// `value` rounded to T.
template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <typename T>
double AsDouble(T value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

// What `values` become when stored as `dtype`.
inline std::vector<double> RoundedTo(DType dtype, std::vector<double> values) {
  VisitDType(dtype, [&]<typename T>() {
    for (double& v : values) v = AsDouble(FromDouble<T>(v));
  });
  return values;
}

// A strided tensor in memory that begins `offset` elements after a 64-byte
// boundary. Memory outside its elements holds a guard pattern.
class HostTensor {
 public:
  // Row-major, all bytes 0xA5.
  HostTensor(DType dtype, std::vector<int64_t> sizes, int64_t offset = 0)
      : HostTensor(dtype, sizes, RowMajor(sizes), offset) {}
  HostTensor(DType dtype, std::vector<int64_t> sizes,
             std::vector<int64_t> strides, int64_t offset = 0) {
    TESSERA_CHECK(sizes.size() == strides.size());
    TESSERA_CHECK(sizes.size() <= kMaxDims);
    int64_t last = 0;
    view_.dtype = dtype;
    view_.num_dims = static_cast<int>(sizes.size());
    for (int d = 0; d < view_.num_dims; ++d) {
      view_.sizes[d] = sizes[d];
      view_.strides[d] = strides[d];
      if (sizes[d] > 0) last += (sizes[d] - 1) * strides[d];
    }
    const int64_t item = ElementBytes(dtype);
    // A heap block of its exact length, so that a sanitizer sees overruns.
    const int64_t slack = 64;
    bytes_.assign((offset + last + 1) * item + slack, 0xA5);
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    const int64_t to_boundary = (64 - address % 64) % 64;
    view_.data = bytes_.data() + to_boundary + offset * item;
    end_ = static_cast<uint8_t*>(view_.data) + (last + 1) * item;
  }
  // With `values` in row-major order.
  static HostTensor Of(DType dtype, const std::vector<double>& values,
                       std::vector<int64_t> sizes, int64_t offset = 0) {
    HostTensor t(dtype, std::move(sizes), offset);
    t.Set(values);
    return t;
  }
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  const TensorView& view() const { return view_; }
  DType dtype() const { return view_.dtype; }

  // Elements in row-major order.
  void Set(const std::vector<double>& values) {
    TESSERA_CHECK(static_cast<int64_t>(values.size()) == view_.num_elements());
    VisitDType(view_.dtype, [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        view_.as<T>()[OffsetOf(i)] = FromDouble<T>(values[i]);
      }
    });
  }
  std::vector<double> Get() const {
    std::vector<double> values(view_.num_elements());
    VisitDType(view_.dtype, [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = AsDouble(view_.as<T>()[OffsetOf(i)]);
      }
    });
    return values;
  }
  // The elements' bytes in row-major order.
  std::vector<uint8_t> Bytes() const {
    const int64_t item = ElementBytes(view_.dtype);
    std::vector<uint8_t> bytes(view_.num_elements() * item);
    for (int64_t i = 0; i < view_.num_elements(); ++i) {
      std::memcpy(&bytes[i * item],
                  static_cast<const uint8_t*>(view_.data) + OffsetOf(i) * item,
                  item);
    }
    return bytes;
  }
  // Whether nobody wrote before the first or after the last element.
  bool GuardsIntact() const {
    const uint8_t* begin = bytes_.data();
    for (const uint8_t* p = begin; p != begin + bytes_.size(); ++p) {
      const bool inside = p >= view_.data && p < end_;
      if (!inside && *p != 0xA5) return false;
    }
    return true;
  }

 private:
  static std::vector<int64_t> RowMajor(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      strides[d] = stride;
      stride *= sizes[d];
    }
    return strides;
  }
  int64_t OffsetOf(int64_t i) const {
    int64_t offset = 0;
    for (int d = view_.num_dims - 1; d >= 0; --d) {
      offset += i % view_.sizes[d] * view_.strides[d];
      i /= view_.sizes[d];
    }
    return offset;
  }

  std::vector<uint8_t> bytes_;
  TensorView view_;
  const uint8_t* end_ = nullptr;
};

// Scratch memory from the heap.
class HeapScratch final : public Scratch {
 public:
  void* Allocate(int64_t num_bytes) override {
    return std::aligned_alloc(64, (num_bytes + 63) / 64 * 64);
  }
  void Free(void* data) override { std::free(data); }
};

// A launch on the CPU for tests of kernels.
inline Launch TestLaunch(int num_threads = 1) {
  static HeapScratch* const scratch = new HeapScratch;
  return {.num_threads = num_threads, .scratch = scratch};
}

}  // namespace tessera
