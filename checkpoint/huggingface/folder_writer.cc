#include "checkpoint/huggingface/folder_writer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/weight_index.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";

}  // namespace

std::string FolderWriter::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

// The first of "", "2", "3", ... under which no file is there.
std::string FolderWriter::FreeTag(size_t num_files) const {
  std::string tag;
  const auto taken = [&] {
    for (size_t i = 0; i < num_files; ++i) {
      std::error_code error;
      if (fs::exists(Path(ShardFileName(i, num_files, tag)), error)) {
        return true;
      }
    }
    return false;
  };
  for (int n = 2; num_files > 1 && taken(); ++n) tag = absl::StrCat(n);
  return tag;
}

absl::StatusOr<std::unique_ptr<FolderWriter>> FolderWriter::Create(
    const std::string& folder, const std::vector<TensorSpec>& tensors,
    int64_t max_shard_bytes) {
  if (max_shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", folder, ": wanted files of 1 byte or more, got ",
                     max_shard_bytes));
  }
  RETURN_IF_ERROR(MakeFolders(folder));
  std::unique_ptr<FolderWriter> writer(new FolderWriter(folder));
  const std::vector<ShardFile> shards =
      SplitIntoShards(tensors, max_shard_bytes);
  const std::string tag = writer->FreeTag(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    File file;
    file.name = ShardFileName(i, shards.size(), tag);
    file.shard = shards[i];
    for (const TensorSpec& tensor : shards[i].tensors) {
      if (writer->file_of_.emplace(tensor.name, i).second) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "write ", folder, ": tensor \"", tensor.name, "\" stands twice"));
    }
    writer->files_.push_back(std::move(file));
  }
  return writer;
}

FolderWriter::~FolderWriter() {
  if (done_) return;
  for (const File& file : files_) {
    std::error_code error;
    if (file.finished) fs::remove(Path(file.name), error);
  }
}

absl::Status FolderWriter::Write(const std::string& name,
                                 const Tensor& tensor) {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    return absl::NotFoundError(absl::StrCat("write ", folder_, ": tensor \"",
                                            name, "\" was not announced"));
  }
  File& file = files_[found->second];
  if (file.finished) {
    return absl::FailedPreconditionError(absl::StrCat(
        Path(file.name), ": tensor \"", name, "\" was written already"));
  }
  if (!file.writer.has_value()) {
    ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(Path(file.name), file.shard.tensors));
    file.writer.emplace(std::move(writer));
  }
  RETURN_IF_ERROR(file.writer->Write(name, tensor));
  ++file.num_written;
  // A file that stands alone is seen by readers: it waits for Finish().
  if (files_.size() == 1 || file.num_written < file.shard.tensors.size()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(file.writer->Finish());
  file.writer.reset();
  file.finished = true;
  return absl::OkStatus();
}

absl::Status FolderWriter::CheckComplete() const {
  for (const File& file : files_) {
    if (file.num_written == file.shard.tensors.size()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Path(file.name), ": ", file.num_written, " of ",
                     file.shard.tensors.size(), " tensors were written"));
  }
  return absl::OkStatus();
}

absl::Status FolderWriter::Finish(
    const std::map<std::string, std::string>& texts) {
  RETURN_IF_ERROR(CheckComplete());
  for (const auto& [name, text] : texts) {
    RETURN_IF_ERROR(WriteFile(Path(name), text));
  }
  RETURN_IF_ERROR(SyncFolder(folder_));
  RETURN_IF_ERROR(Switch());
  done_ = true;
  RETURN_IF_ERROR(RemoveOld());
  return SyncFolder(folder_);
}

absl::Status FolderWriter::Switch() {
  if (files_.size() == 1) {
    File& file = files_[0];
    if (!file.writer.has_value()) {  // A model without tensors.
      ASSIGN_OR_RETURN(SafetensorsWriter writer,
                       SafetensorsWriter::Create(Path(file.name), {}));
      file.writer.emplace(std::move(writer));
    }
    return file.writer->Finish();
  }
  std::map<std::string, std::string> weight_map;
  int64_t total_bytes = 0;
  int64_t num_elements = 0;
  for (const File& file : files_) {
    total_bytes += file.shard.num_bytes;
    for (const TensorSpec& tensor : file.shard.tensors) {
      weight_map[tensor.name] = file.name;
      num_elements += tensor.shape.num_elements();
    }
  }
  return WriteFile(Path(kIndexName),
                   SerializeWeightIndex(weight_map, total_bytes, num_elements));
}

// An index goes before the files that it names.
absl::Status FolderWriter::RemoveOld() const {
  std::vector<std::string> old;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename();
    bool ours = files_.size() > 1 && name == kIndexName;
    for (const File& file : files_) ours = ours || file.name == name;
    if (!ours && IsShardFileName(name)) old.push_back(name);
    if (old.size() > 1 && old.back() == kIndexName) {
      std::swap(old.front(), old.back());
    }
  }
  for (const std::string& name : old) {
    if (!error) fs::remove(Path(name), error);
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("remove the old weights of ", folder_));
}

}  // namespace tessera
