// A tensor as a pickle of torch describes it: a window with strides on a
// storage that lies elsewhere in the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_graph.h"
#include "checkpoint/torch/torch_type.h"
#include "runtime/tensor/shape.h"

namespace tessera {

struct TorchStorage {
  std::string key;
  const TorchType* type = nullptr;  // Null: bytes, "UntypedStorage".
  int64_t num_elements = 0;         // Bytes when untyped.
  // Of the record in the file; a view (legacy files) is a part of it.
  int64_t record_elements = 0;
  int64_t first_element = 0;
};

struct TorchTensor {
  TorchStorage storage;
  const TorchType* type = nullptr;
  int64_t offset = 0;  // In elements, from the storage's start.
  Shape shape;
  Dims strides;
  bool requires_grad = false;
  bool is_parameter = false;

  int64_t num_bytes() const {
    return shape.num_elements() * type->element_bytes;
  }
  bool IsContiguous() const;
};

// Whether `ref` is a call that makes a tensor.
bool IsTorchTensor(const PickleGraph& graph, PickleRef ref);

// What a persistent reference says. Meta storages are refused.
absl::StatusOr<TorchStorage> ParseTorchStorage(const PickleGraph& graph,
                                               PickleRef ref);

// Checks that every element lies in the storage and that no product or sum
// overflows. The storage itself is not looked for.
absl::StatusOr<TorchTensor> ParseTorchTensor(const PickleGraph& graph,
                                             PickleRef ref);

// Elements [begin, begin + length) of the tensor in row-major order, to `out`.
// `storage` has the bytes that the tensor's storage says. Booleans become 0 or
// 1, whatever the file has.
void GatherElements(const TorchTensor& tensor, std::string_view storage,
                    int64_t begin, int64_t length, void* out);

}  // namespace tessera
