#include "checkpoint/safetensors/element_type.h"

#include <cstdlib>

namespace tessera {
namespace {

constexpr SafetensorsType kTypes[] = {
    {"BOOL", 8, 0, DType::kBool},
    {"F4", 4, 1},
    {"F6_E2M3", 6, 2},
    {"F6_E3M2", 6, 3},
    {"U8", 8, 4, DType::kUInt8},
    {"I8", 8, 5},
    {"F8_E5M2", 8, 6},
    {"F8_E4M3", 8, 7},
    {"F8_E8M0", 8, 8},
    {"F8_E4M3FNUZ", 8, 9},
    {"F8_E5M2FNUZ", 8, 10},
    {"I16", 16, 11},
    {"U16", 16, 12},
    {"F16", 16, 13, DType::kFloat16},
    {"BF16", 16, 14, DType::kBFloat16},
    {"I32", 32, 15, DType::kInt32},
    {"U32", 32, 16},
    {"F32", 32, 17, DType::kFloat32},
    {"C64", 64, 18},
    {"F64", 64, 19, DType::kFloat64},
    {"I64", 64, 20, DType::kInt64},
    {"U64", 64, 21},
};

}  // namespace

const SafetensorsType* FindSafetensorsType(const std::string& name) {
  for (const SafetensorsType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::optional<DType> SafetensorsType::moved_as() const {
  const OpaqueType* opaque = FindOpaqueSafetensorsType(name);
  return opaque == nullptr ? dtype : opaque->carrier;
}

const SafetensorsType& SafetensorsTypeOf(const TensorSpec& spec) {
  if (spec.opaque == nullptr) return SafetensorsTypeOf(spec.dtype);
  return *FindSafetensorsType(std::string(spec.opaque->safetensors));
}

const SafetensorsType& SafetensorsTypeOf(DType dtype) {
  for (const SafetensorsType& type : kTypes) {
    if (type.dtype == dtype) return type;
  }
  std::abort();
}

}  // namespace tessera
