// The element types that safetensors files know, and which of them are ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/tensor_spec.h"
#include "kernels/dtype.h"

namespace tessera {

struct SafetensorsType {
  const char* name;  // "BF16"
  int num_bits;
  // Tensors of higher rank come first in a file, so each is aligned.
  int rank;
  std::optional<DType> dtype = {};  // Nothing: files may have it, we do not.

  // In which elements are written and copied; nothing: they are not.
  std::optional<DType> moved_as() const;
};

// Null when no type has that name.
const SafetensorsType* FindSafetensorsType(const std::string& name);
const SafetensorsType& SafetensorsTypeOf(DType dtype);
const SafetensorsType& SafetensorsTypeOf(const TensorSpec& spec);

}  // namespace tessera
