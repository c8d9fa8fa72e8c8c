// Element types and how to get from their run-time tag to a C++ type.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
};

inline constexpr int kNumDTypes = 8;

// The upper half of a float32. Conversion rounds to nearest even; NaN stays
// (quiet) NaN.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((word >> 16) | 0x40u);
    } else {
      word += 0x7fffu + ((word >> 16) & 1u);
      bits = static_cast<uint16_t>(word >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }
};

// IEEE binary16. Conversion rounds to nearest even.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  explicit float16(float value)
      : bits(static_cast<uint16_t>(
            _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))) {}
  explicit operator float() const { return _cvtsh_ss(bits); }
};

template <typename T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<float16> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kInt64;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kUInt8;
template <>
inline constexpr DType kDTypeOf<bool> = DType::kBool;

// Calls f.operator()<T>() with the C++ type of `dtype`.
template <typename F>
auto VisitDType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kBFloat16:
      return f.template operator()<bfloat16>();
    case DType::kFloat16:
      return f.template operator()<float16>();
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kInt32:
      return f.template operator()<int32_t>();
    case DType::kInt64:
      return f.template operator()<int64_t>();
    case DType::kUInt8:
      return f.template operator()<uint8_t>();
    case DType::kBool:
      return f.template operator()<bool>();
  }
  std::abort();
}

// As VisitDType, for the four floating types only; others abort, so check
// IsFloating first.
template <typename F>
auto VisitFloating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kBFloat16:
      return f.template operator()<bfloat16>();
    case DType::kFloat16:
      return f.template operator()<float16>();
    case DType::kFloat64:
      return f.template operator()<double>();
    default:
      std::abort();
  }
}

int64_t ElementBytes(DType dtype);

// "float32", "bfloat16", ... as torch names them.
const char* DTypeName(DType dtype);

// Accepts torch's names and the short forms "fp32", "bf16", "fp16", "f64".
absl::StatusOr<DType> ParseDType(absl::string_view name);

bool IsFloating(DType dtype);

// What sums of `dtype` are kept in: float32 for the 16- and 32-bit floats,
// float64 for float64, the type itself for integers.
DType AccumulateDType(DType dtype);

}  // namespace tessera
