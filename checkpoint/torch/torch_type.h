// The element types that torch's files know, and which of them are ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "checkpoint/tensor_spec.h"
#include "kernels/dtype.h"

namespace tessera {

struct TorchType {
  std::string_view name;     // "bfloat16", as in torch.bfloat16.
  std::string_view storage;  // "BFloat16Storage"; "": only untyped storages.
  int64_t element_bytes;
  std::optional<DType> dtype = {};  // Nothing: files may have it, we do not.
};

// Null when there is no such name.
const TorchType* FindTorchType(std::string_view name);
const TorchType* FindTorchStorage(std::string_view storage);
const TorchType& TorchTypeOf(DType dtype);
const TorchType& TorchTypeOf(const TensorSpec& spec);

}  // namespace tessera
