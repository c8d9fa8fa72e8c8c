#include "checkpoint/opaque_type.h"

namespace tessera {
namespace {

constexpr OpaqueType kTypes[] = {
    {"int8", "I8", DType::kUInt8},
    {"int16", "I16", DType::kFloat16},
    {"uint16", "U16", DType::kFloat16},
    {"uint32", "U32", DType::kInt32},
    {"uint64", "U64", DType::kInt64},
    {"complex64", "C64", DType::kInt64},
    {"float8_e4m3fn", "F8_E4M3", DType::kUInt8},
    {"float8_e5m2", "F8_E5M2", DType::kUInt8},
    {"float8_e4m3fnuz", "F8_E4M3FNUZ", DType::kUInt8},
    {"float8_e5m2fnuz", "F8_E5M2FNUZ", DType::kUInt8},
    {"float8_e8m0fnu", "F8_E8M0", DType::kUInt8},
};

}  // namespace

const OpaqueType* FindOpaqueTorchType(std::string_view name) {
  for (const OpaqueType& type : kTypes) {
    if (type.torch == name) return &type;
  }
  return nullptr;
}

const OpaqueType* FindOpaqueSafetensorsType(std::string_view name) {
  for (const OpaqueType& type : kTypes) {
    if (type.safetensors == name) return &type;
  }
  return nullptr;
}

}  // namespace tessera
