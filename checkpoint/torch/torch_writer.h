// Writes files that torch.load(weights_only=True) takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/tensor_spec.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/torch_archive_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Writes a state dict tensor by tensor, so that what is written need never be
// in memory at once. Without Finish() nothing appears at `path`.
class TorchWriter {
 public:
  // Names are those of all tensors to come, in the order of the dictionary.
  static absl::StatusOr<TorchWriter> Create(
      const std::string& path, const std::vector<TensorSpec>& tensors);

  // The whole tensor, contiguous, on a CPU. Waits for the compute stream.
  absl::Status Write(const std::string& name, const Tensor& tensor);
  // The next elements of a tensor in row-major order: `begin` says from where
  // on. Tensors may be written in turns.
  absl::Status WriteElements(const std::string& name, int64_t begin,
                             const Tensor& tensor);
  // Checks that every tensor was written whole; all is on disk, but not seen.
  absl::Status Sync();
  // The same, and makes the file appear.
  absl::Status Finish();

 private:
  TorchWriter(std::unique_ptr<NewFile> file, std::vector<TensorSpec> tensors);

  std::unique_ptr<NewFile> file_;
  TorchArchiveWriter archive_;
  std::vector<TensorSpec> tensors_;
  std::unordered_map<std::string, size_t> index_;
  bool is_whole_ = false;
};

// Writes a value with its tensors: optimizers, schedulers, nested
// dictionaries. See MakeTorchPickle for what can be written.
absl::Status WriteTorchFile(const std::string& path, const PickleValue& value);
// The same into a file that is being written, from byte `base` on, as torch
// does for streams; returns the number of bytes.
absl::StatusOr<int64_t> WriteTorchItem(NewFile& file, int64_t base,
                                       const PickleValue& value);

}  // namespace tessera
