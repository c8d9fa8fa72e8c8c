#include "checkpoint/torch/torch_type.h"

#include <cstdlib>

namespace tessera {
namespace {

constexpr TorchType kTypes[] = {
    {"float32", "FloatStorage", 4, DType::kFloat32},
    {"bfloat16", "BFloat16Storage", 2, DType::kBFloat16},
    {"float16", "HalfStorage", 2, DType::kFloat16},
    {"float64", "DoubleStorage", 8, DType::kFloat64},
    {"int64", "LongStorage", 8, DType::kInt64},
    {"int32", "IntStorage", 4, DType::kInt32},
    {"int16", "ShortStorage", 2},
    {"int8", "CharStorage", 1},
    {"uint8", "ByteStorage", 1, DType::kUInt8},
    {"bool", "BoolStorage", 1, DType::kBool},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"complex32", "", 4},
    {"uint16", "", 2},
    {"uint32", "", 4},
    {"uint64", "", 8},
    {"float8_e4m3fn", "", 1},
    {"float8_e5m2", "", 1},
    {"float8_e4m3fnuz", "", 1},
    {"float8_e5m2fnuz", "", 1},
    {"float8_e8m0fnu", "", 1},
    {"float4_e2m1fn_x2", "", 1},
};

}  // namespace

const TorchType* FindTorchType(std::string_view name) {
  for (const TorchType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const TorchType* FindTorchStorage(std::string_view storage) {
  for (const TorchType& type : kTypes) {
    if (!type.storage.empty() && type.storage == storage) return &type;
  }
  return nullptr;
}

const TorchType& TorchTypeOf(const TensorSpec& spec) {
  if (spec.opaque == nullptr) return TorchTypeOf(spec.dtype);
  return *FindTorchType(spec.opaque->torch);
}

const TorchType& TorchTypeOf(DType dtype) {
  for (const TorchType& type : kTypes) {
    if (type.dtype == dtype) return type;
  }
  std::abort();
}

}  // namespace tessera
