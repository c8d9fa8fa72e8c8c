// Reads tensors of a safetensors file, whole or in part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/header.h"
#include "runtime/data/file_io.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Opening checks the whole header against the size of the file; every later
// error is the disk's, or a name that is not there. Thread-safe.
class SafetensorsFile {
 public:
  // Errors name the file, and the tensor and reason where one is at fault.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t num_bytes() const { return file_.num_bytes(); }
  // In the order in which they lie in the file.
  std::vector<std::string> names() const;
  bool Contains(const std::string& name) const;
  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }
  const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }
  // kNotFound, with a name that is near, when there is no such tensor.
  absl::StatusOr<SafetensorsEntry> Info(const std::string& name) const;

  // A new tensor on `device` (a CPU). Element types that tessera does not have
  // are kUnimplemented.
  absl::StatusOr<Tensor> Read(const std::string& name,
                              Device device = CpuDevice()) const;
  // Elements [begin, begin + length) in row-major order, as one dimension.
  absl::StatusOr<Tensor> ReadElements(const std::string& name, int64_t begin,
                                      int64_t length,
                                      Device device = CpuDevice()) const;
  // As ReadElements, into a contiguous tensor of the same element type that
  // has as many elements.
  absl::Status ReadInto(const std::string& name, int64_t begin,
                        const Tensor& out) const;

 private:
  SafetensorsFile(ReadableFile file, SafetensorsHeader header,
                  int64_t data_offset);

  ReadableFile file_;
  SafetensorsHeader header_;
  int64_t data_offset_;  // Of the data in the file.
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace tessera
