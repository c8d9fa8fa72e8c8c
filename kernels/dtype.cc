#include "kernels/dtype.h"

#include "absl/strings/str_cat.h"

namespace tessera {

int64_t ElementBytes(DType dtype) {
  return VisitDType(dtype, []<typename T>() -> int64_t { return sizeof(T); });
}

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  std::abort();
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == DTypeName(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  if (name == "fp32") return DType::kFloat32;
  if (name == "bf16") return DType::kBFloat16;
  if (name == "fp16") return DType::kFloat16;
  if (name == "f64" || name == "fp64") return DType::kFloat64;
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype: wanted float32, bfloat16, float16, float64, int32, int64, uint8 "
      "or bool, got \"",
      name, "\""));
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16 || dtype == DType::kFloat64;
}

DType AccumulateDType(DType dtype) {
  if (dtype == DType::kBFloat16 || dtype == DType::kFloat16) {
    return DType::kFloat32;
  }
  return dtype;
}

}  // namespace tessera
