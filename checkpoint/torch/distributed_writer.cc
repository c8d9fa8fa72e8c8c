#include "checkpoint/torch/distributed_writer.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/torch_writer.h"
#include "kernels/status.h"

namespace tessera {

absl::StatusOr<DistributedFileWriter> DistributedFileWriter::Create(
    const std::string& folder, int rank) {
  std::string name = absl::StrCat("__", rank, "_0.distcp");
  ASSIGN_OR_RETURN(NewFile file,
                   NewFile::Create(absl::StrCat(folder, "/", name)));
  return DistributedFileWriter(std::make_unique<NewFile>(std::move(file)),
                               std::move(name));
}

absl::StatusOr<DistributedItem> DistributedFileWriter::Write(
    const PickleValue& value) {
  ASSIGN_OR_RETURN(const int64_t length, WriteTorchItem(*file_, size_, value));
  const DistributedItem item{name_, size_, length};
  size_ += length;
  return item;
}

absl::StatusOr<DistributedItem> DistributedFileWriter::Write(
    const Tensor& tensor) {
  return Write(PickleValue(tensor));
}

absl::Status DistributedFileWriter::Finish() { return file_->Commit(); }

absl::Status StartDistributedFolder(const std::string& folder) {
  namespace fs = std::filesystem;
  RETURN_IF_ERROR(MakeFolders(folder));
  std::error_code error;
  fs::remove(absl::StrCat(folder, "/", kDistributedMetadataName), error);
  if (!error) RETURN_IF_ERROR(SyncFolder(folder));
  RETURN_IF_ERROR(RemoveAbandonedFiles(folder, [](const std::string& name) {
    return name.ends_with(".distcp") || name == kDistributedMetadataName;
  }));
  // Only now: pieces go after what said that they make up a checkpoint.
  std::vector<fs::path> old;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".distcp") old.push_back(it->path());
  }
  for (const fs::path& path : old) {
    if (!error) fs::remove(path, error);
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat("clear folder ", folder));
}

absl::Status FinishDistributedFolder(const std::string& folder,
                                     const DistributedMetadata& metadata) {
  const std::string path = absl::StrCat(folder, "/", kDistributedMetadataName);
  const absl::Status status = CheckDistributedMetadata(metadata);
  if (!status.ok()) return Annotate(status, path);
  return WriteFile(path, SerializeDistributedMetadata(metadata));
}

}  // namespace tessera
