// Writes a Hugging Face folder tensor by tensor, in files of a chosen size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/safetensors/safetensors_writer.h"

namespace tessera {

// [Note: the old model stays] New weights never have the name of a file that is
// there: files of a sharded model get fresh names where theirs are taken. What
// readers look at first, model.safetensors or the index, is renamed into place
// last, when all else is on disk; only then do the old weights go. Killed at
// any moment, the folder holds the old weights or the new ones. A writer that
// is destroyed before Finish() removes what it wrote.
class FolderWriter {
 public:
  // Makes `folder` if need be. `tensors` are all that will come.
  static absl::StatusOr<std::unique_ptr<FolderWriter>> Create(
      const std::string& folder, const std::vector<TensorSpec>& tensors,
      int64_t max_shard_bytes);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // A whole tensor, contiguous, on a CPU; in any order, each once.
  absl::Status Write(const std::string& name, const Tensor& tensor);

  // Writes `texts` (config.json and others, by file name) and makes the model
  // the folder's. Every tensor must have been written.
  absl::Status Finish(const std::map<std::string, std::string>& texts);

 private:
  struct File {
    std::string name;
    ShardFile shard;
    std::optional<SafetensorsWriter> writer;  // While it is being written.
    size_t num_written = 0;
    bool finished = false;
  };

  explicit FolderWriter(std::string folder) : folder_(std::move(folder)) {}
  std::string Path(const std::string& name) const;
  std::string FreeTag(size_t num_files) const;
  absl::Status CheckComplete() const;
  absl::Status Switch();
  absl::Status RemoveOld() const;

  const std::string folder_;
  std::vector<File> files_;
  std::map<std::string, size_t> file_of_;  // By tensor.
  bool done_ = false;
};

}  // namespace tessera
