// Writes a safetensors file tensor by tensor, so that what is written need
// never be in memory at once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/header.h"
#include "runtime/data/file_io.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
};

// The bytes are those that the reference library writes: wide types first,
// then by name, so every tensor is aligned to its elements. Tensors may be
// given in any order and in pieces. Without Finish() nothing appears at `path`.
class SafetensorsWriter {
 public:
  // Names are those of all tensors to come. {"format": "pt"} is added to
  // `metadata`, which other readers demand.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<TensorSpec>& tensors,
      std::map<std::string, std::string> metadata = {});

  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }
  // The whole tensor, contiguous, on a CPU. Waits for the compute stream.
  absl::Status Write(const std::string& name, const Tensor& tensor);
  // Elements [begin, begin + tensor.num_elements()) in row-major order.
  absl::Status WriteElements(const std::string& name, int64_t begin,
                             const Tensor& tensor);
  // Checks that every tensor was written whole, and makes the file appear.
  absl::Status Finish();

 private:
  SafetensorsWriter(NewFile file, SafetensorsHeader header,
                    int64_t data_offset);

  NewFile file_;
  SafetensorsHeader header_;
  int64_t data_offset_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<int64_t> written_bytes_;  // Of each entry.
};

}  // namespace tessera
