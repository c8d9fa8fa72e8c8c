// Writes the weights of a model as files of torch: pytorch_model.bin, or
// several and an index.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/tensor_spec.h"
#include "checkpoint/torch/torch_writer.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Tensor by tensor, in any order; see SplitIntoShards for which file each goes
// to. As in FolderWriter, new files never have the name of one that is there,
// the index, or the one file, appears last, and only then do older weights go:
// killed at any moment, the folder holds the old weights or the new ones. A
// writer that is destroyed before Finish() removes what it wrote.
class BinWriter {
 public:
  // Makes `folder` if need be. `tensors` are all that will come.
  static absl::StatusOr<BinWriter> Create(
      const std::string& folder, const std::vector<TensorSpec>& tensors,
      int64_t max_shard_bytes);
  BinWriter(BinWriter&& other) noexcept;
  BinWriter& operator=(BinWriter&&) = delete;
  ~BinWriter();

  // The whole tensor, contiguous, on a CPU.
  absl::Status Write(const std::string& name, const Tensor& tensor);
  // Every tensor must have been written.
  absl::Status Finish();

 private:
  explicit BinWriter(std::string folder) : folder_(std::move(folder)) {}
  std::string Path(const std::string& name) const;
  std::string FreeTag(size_t num_files) const;
  absl::Status RemoveOld() const;

  std::string folder_;  // Empty: moved from.
  std::vector<TorchWriter> files_;
  std::vector<std::string> names_;  // Of the files.
  size_t num_finished_ = 0;         // Of the files.
  bool done_ = false;
  std::map<std::string, size_t> file_of_;       // By tensor.
  std::map<std::string, std::string> weights_;  // Tensor to file name.
  int64_t num_bytes_ = 0;
  int64_t num_elements_ = 0;
};

}  // namespace tessera
