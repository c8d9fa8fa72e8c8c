// One file of weights on its way, of either format.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/folder_format.h"
#include "checkpoint/tensor_spec.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

class WeightFileWriter {
 public:
  // `tensors` are all that will come.
  static absl::StatusOr<std::unique_ptr<WeightFileWriter>> Create(
      FolderFormat format, const std::string& path,
      const std::vector<TensorSpec>& tensors);
  virtual ~WeightFileWriter() = default;

  // The whole tensor, contiguous, on a CPU.
  virtual absl::Status Write(const std::string& name, const Tensor& tensor) = 0;
  // Checks that every tensor was written; all is on disk, but not yet seen.
  virtual absl::Status Sync() = 0;
  // The file appears: after Sync(), no more than a renaming.
  virtual absl::Status Finish() = 0;
};

}  // namespace tessera
