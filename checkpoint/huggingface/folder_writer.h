// Writes a Hugging Face folder tensor by tensor, in files of a chosen size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/folder_format.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/huggingface/weight_file_writer.h"
#include "runtime/data/file_io.h"

namespace tessera {

struct FolderWriterOptions {
  int64_t max_shard_bytes = kDefaultMaxShardBytes;
  FolderFormat format = FolderFormat::kSafetensors;
  // Weights of the other format go, too. Otherwise they stay, and readers look
  // at safetensors first.
  bool replace_other_format = false;
};

// [Note: the old model stays] New weights never have the name of a file that is
// there: files of a sharded model get fresh names where theirs are taken. What
// readers look at first, model.safetensors or the index, is renamed into place
// last, when all else is on disk; only then do the old weights go. Killed at
// any moment, the folder holds the old weights or the new ones.
//
// Texts that are in the folder as they are to be, as in a run that saves again
// and again, are not touched. Where one differs, a file system cannot rename it
// and the weights in one step, and old weights under a new config (another
// rope_theta, say) would load without a word. So config.json is away, as
// config.json.replaced, from just before weights and texts are renamed until
// they belong together again. Everything was synced before, so that this takes
// a few operations on names. Killed within them, the folder is refused for want
// of a config.json, and ReadFolderConfig says where the old one is; killed at
// any other moment, it holds the old model or the new one.
//
// A writer that is destroyed before Finish() removes what it wrote. What a
// process leaves that was killed goes when the next writer begins or ends.
class FolderWriter {
 public:
  // Makes `folder` if need be. `tensors` are all that will come.
  static absl::StatusOr<std::unique_ptr<FolderWriter>> Create(
      const std::string& folder, const std::vector<TensorSpec>& tensors,
      const FolderWriterOptions& options);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // A whole tensor, contiguous, on a CPU; in any order, each once.
  absl::Status Write(const std::string& name, const Tensor& tensor);

  // Makes the weights and `texts` (config.json and others, by file name) the
  // folder's. Every tensor must have been written.
  absl::Status Finish(const std::map<std::string, std::string>& texts);

 private:
  struct File {
    std::string name;
    ShardFile shard;
    std::unique_ptr<WeightFileWriter> writer;  // While it is being written.
    size_t num_written = 0;
    bool finished = false;
  };

  FolderWriter(std::string folder, const FolderWriterOptions& options)
      : folder_(std::move(folder)), options_(options) {}
  std::string Path(const std::string& name) const;
  std::string FreeTag(size_t num_files) const;
  absl::Status AddFiles(const std::vector<ShardFile>& shards);
  absl::Status StartFile(File& file) const;
  absl::Status CheckComplete() const;
  std::string HeadName() const;
  absl::StatusOr<NewFile> WriteIndex() const;
  absl::Status Switch(std::optional<NewFile>& index);
  absl::StatusOr<std::vector<std::string>> OldFiles() const;
  absl::Status Remove(const std::vector<std::string>& names) const;

  const std::string folder_;
  const FolderWriterOptions options_;
  std::vector<File> files_;
  std::map<std::string, size_t> file_of_;  // By tensor.
  bool done_ = false;                      // The folder's are the new ones.
};

}  // namespace tessera
