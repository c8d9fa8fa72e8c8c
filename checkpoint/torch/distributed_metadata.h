// The .metadata file of a torch distributed checkpoint: which tensors there
// are, in which pieces, and where those lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/tensor_box.h"
#include "checkpoint/torch/torch_type.h"
#include "runtime/tensor/shape.h"

namespace tessera {

inline constexpr char kDistributedMetadataName[] = ".metadata";

// Where a value stands in nested dictionaries (a text) and lists (a number).
// Texts may hold dots, so the key that is joined from it cannot be split.
using DistributedPath = std::vector<std::variant<std::string, int64_t>>;

// {"model", "layers.0.weight"} -> "model.layers.0.weight".
std::string DistributedKey(const DistributedPath& path);

// A range of bytes of a file in the folder: a whole torch.save archive.
struct DistributedItem {
  std::string file;  // "__0_0.distcp"
  int64_t offset = 0;
  int64_t length = 0;
};

struct DistributedChunk {
  TensorBox box;
  DistributedItem item;
};

struct DistributedTensor {
  const TorchType* type = nullptr;
  Shape shape;
  std::vector<DistributedChunk> chunks;
};

struct DistributedMetadata {
  std::map<std::string, DistributedTensor> tensors;  // By key.
  std::map<std::string, DistributedItem> values;     // What is no tensor.
  // Of each key; empty when the file does not say: then the key is the path.
  std::map<std::string, DistributedPath> paths;
};

// Accepts what torch since 1.13 writes. Refused, naming the key: all that
// Unpickle refuses, attributes of another kind, pieces that do not make up
// their tensor, or that no file holds, file names that lead out of the folder,
// transformed data.
absl::StatusOr<DistributedMetadata> ParseDistributedMetadata(
    std::string_view bytes);

// A pickle of protocol 2 that torch reads. `metadata.paths` has every key.
std::string SerializeDistributedMetadata(const DistributedMetadata& metadata);

// OK when the pieces of every tensor make it up.
absl::Status CheckDistributedMetadata(const DistributedMetadata& metadata);

}  // namespace tessera
