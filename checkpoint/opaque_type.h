// Element types that files have and tessera does not compute with, as int8: a
// tensor of one is listed, copied from file to file and compared, bit for bit.
#pragma once

#include <string_view>

#include "kernels/dtype.h"

namespace tessera {

struct OpaqueType {
  std::string_view torch;        // "int8"
  std::string_view safetensors;  // "I8"
  // A type of ours with elements of the same size, in which they are moved:
  // only their bytes mean anything.
  DType carrier;
};

// Null when there is none of that name.
const OpaqueType* FindOpaqueTorchType(std::string_view name);
const OpaqueType* FindOpaqueSafetensorsType(std::string_view name);

}  // namespace tessera
