// What a file or folder of weights, tokens or settings holds, and whether all
// of it can be read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/tensor/shape.h"

namespace tessera {

struct InspectedTensor {
  std::string name;
  std::string type;  // As the file calls it.
  Shape shape;
  std::optional<int64_t> num_bytes = {};   // Nothing: a type we lack.
  int num_pieces = 1;                      // In which it is stored.
  std::optional<int64_t> non_finite = {};  // Once verified: NaN, infinity.
};

struct InspectedFile {
  std::string name;
  int64_t num_bytes = 0;
  std::optional<uint64_t> checksum =
      {};  // XXH3, once verified or written down.
};

struct Inspection {
  std::string path;
  std::string kind;  // "safetensors file", "torch distributed checkpoint", ...
  // Metadata, step, world size, sizes of a model: name and value.
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<InspectedFile> files;
  std::vector<InspectedTensor> tensors;
  std::vector<std::string> warnings;
  std::vector<std::string> damage;  // What could not be read; empty: nothing.
};

struct InspectOptions {
  // Reads all data: compares the checksums that there are, counts numbers that
  // are not finite.
  bool verify = false;
  std::function<void(int64_t, int64_t)> progress = {};
};

// Of a safetensors file, a folder of weights with or without an index, a file
// of torch.save, a folder of torch.distributed.checkpoint, a checkpoint of a
// run, an adapter, a state as Accelerate saves it, an llm.c file, or a JSON
// file of a model's folder: see KindOfPath. An error for what is none of these,
// or damaged where its structure is described; damage of data, which only
// `verify` finds, is in the result, file by file and tensor by tensor.
absl::StatusOr<Inspection> Inspect(const std::string& path,
                                   const InspectOptions& options = {});

// For people: a line a fact, file and tensor.
std::string InspectionText(const Inspection& inspection);
// The same as one JSON object.
std::string InspectionJson(const Inspection& inspection);

}  // namespace tessera
