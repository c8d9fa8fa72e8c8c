// Writes a safetensors file tensor by tensor, so that what is written need
// never be in memory at once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/tensor_spec.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

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
  // As WriteElements, of elements that lie at `data` and that nobody writes: no
  // stream is waited for, so that any thread may write.
  absl::Status WriteHostElements(const std::string& name, int64_t begin,
                                 const void* data, int64_t num_elements);
  // Checks that every tensor was written whole; all is on disk, but not seen.
  absl::Status Sync();
  // The same, and makes the file appear.
  absl::Status Finish();

  int64_t num_bytes() const { return data_offset_ + header_.data_bytes; }
  // Of the whole file, when its tensors were written in the order of entries(),
  // each from front to back.
  std::optional<uint64_t> checksum() const;

 private:
  SafetensorsWriter(NewFile file, SafetensorsHeader header,
                    const std::string& text);
  absl::Status Put(int64_t offset, const void* data, int64_t num_bytes);

  NewFile file_;
  SafetensorsHeader header_;
  int64_t data_offset_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<int64_t> written_bytes_;  // Of each entry.
  StreamingChecksum checksum_;          // Of the first checksum_bytes_ bytes.
  int64_t checksum_bytes_ = 0;
};

}  // namespace tessera
