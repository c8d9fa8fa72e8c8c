#include "checkpoint/huggingface/folder_writer.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_texts.h"
#include "checkpoint/huggingface/weight_index.h"
#include "kernels/status.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool IsAnyWeightFileName(const std::string& name) {
  return IsWeightFileName(FolderFormat::kSafetensors, name) ||
         IsWeightFileName(FolderFormat::kTorch, name);
}

// The place of a name among those that readers look for, and kNoHead for what
// they do not.
constexpr int kNoHead = 4;
int LookOrder(const std::string& name) {
  int order = 0;
  for (const FolderFormat format :
       {FolderFormat::kSafetensors, FolderFormat::kTorch}) {
    for (const std::string& head :
         {WholeFileName(format), IndexFileName(format)}) {
      if (name == head) return order;
      ++order;
    }
  }
  return kNoHead;
}

// An index goes before the files that it names, and what readers look at last
// goes first: it must not come to light.
bool GoesBefore(const std::string& a, const std::string& b) {
  const auto turn = [](int order) { return order == kNoHead ? 0 : -1 - order; };
  return std::pair(turn(LookOrder(a)), a) < std::pair(turn(LookOrder(b)), b);
}

// Another number for another file under the same name; 0: none.
ino_t NumberOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

std::string FolderWriter::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

// The first of "", "2", "3", ... under which no file is there.
std::string FolderWriter::FreeTag(size_t num_files) const {
  std::string tag;
  const auto taken = [&] {
    for (size_t i = 0; i < num_files; ++i) {
      if (Exists(Path(WeightFileName(options_.format, i, num_files, tag)))) {
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
    const FolderWriterOptions& options) {
  if (options.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", folder, ": wanted files of 1 byte or more, got ",
                     options.max_shard_bytes));
  }
  RETURN_IF_ERROR(MakeFolders(folder));
  RETURN_IF_ERROR(RemoveAbandonedFiles(folder, IsAnyWeightFileName));
  std::unique_ptr<FolderWriter> writer(new FolderWriter(folder, options));
  RETURN_IF_ERROR(
      writer->AddFiles(SplitIntoShards(tensors, options.max_shard_bytes)));
  return writer;
}

absl::Status FolderWriter::AddFiles(const std::vector<ShardFile>& shards) {
  const std::string tag = FreeTag(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    File file;
    file.name = WeightFileName(options_.format, i, shards.size(), tag);
    file.shard = shards[i];
    for (const TensorSpec& tensor : shards[i].tensors) {
      if (file_of_.emplace(tensor.name, i).second) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "write ", folder_, ": tensor \"", tensor.name, "\" stands twice"));
    }
    files_.push_back(std::move(file));
  }
  return absl::OkStatus();
}

FolderWriter::~FolderWriter() {
  if (done_) return;
  for (const File& file : files_) {
    std::error_code error;
    if (file.finished) fs::remove(Path(file.name), error);
  }
}

absl::Status FolderWriter::StartFile(File& file) const {
  ASSIGN_OR_RETURN(file.writer,
                   WeightFileWriter::Create(options_.format, Path(file.name),
                                            file.shard.tensors));
  return absl::OkStatus();
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
  if (file.writer == nullptr) RETURN_IF_ERROR(StartFile(file));
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

// What readers of the new weights look at first.
std::string FolderWriter::HeadName() const {
  return files_.size() == 1 ? files_[0].name : IndexFileName(options_.format);
}

absl::Status FolderWriter::Finish(
    const std::map<std::string, std::string>& texts) {
  RETURN_IF_ERROR(CheckComplete());
  ASSIGN_OR_RETURN(FolderTexts changed, FolderTexts::Prepare(folder_, texts));
  std::optional<NewFile> index;
  if (files_.size() > 1) {
    ASSIGN_OR_RETURN(NewFile written, WriteIndex());
    index.emplace(std::move(written));
  } else {
    if (files_[0].writer == nullptr) RETURN_IF_ERROR(StartFile(files_[0]));
    RETURN_IF_ERROR(files_[0].writer->Sync());
  }
  RETURN_IF_ERROR(SyncFolder(folder_));
  RETURN_IF_ERROR(changed.HideConfig());
  const absl::Status switched = Switch(index);
  // Which weights readers find is not known.
  if (!switched.ok() && done_) changed.LeaveHidden();
  RETURN_IF_ERROR(switched);
  RETURN_IF_ERROR(changed.Commit());
  ASSIGN_OR_RETURN(const std::vector<std::string> old, OldFiles());
  RETURN_IF_ERROR(Remove(old));
  return SyncFolder(folder_);
}

absl::StatusOr<NewFile> FolderWriter::WriteIndex() const {
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
  const std::string text =
      SerializeWeightIndex(weight_map, total_bytes, num_elements);
  ASSIGN_OR_RETURN(NewFile index, NewFile::Create(Path(HeadName())));
  RETURN_IF_ERROR(
      index.WriteAt(0, text.data(), static_cast<int64_t>(text.size())));
  RETURN_IF_ERROR(index.Sync());
  return index;
}

// Readers find the new weights once those old ones are away that they would
// look at before.
absl::Status FolderWriter::Switch(std::optional<NewFile>& index) {
  const std::string head = Path(HeadName());
  const ino_t before = NumberOf(head);
  const absl::Status named =
      index.has_value() ? index->Commit() : files_[0].writer->Finish();
  done_ = named.ok() || NumberOf(head) != before;
  RETURN_IF_ERROR(named);
  ASSIGN_OR_RETURN(std::vector<std::string> old, OldFiles());
  std::erase_if(old,
                [](const auto& name) { return LookOrder(name) == kNoHead; });
  if (old.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Remove(old));
  return SyncFolder(folder_);
}

// Weights in the folder that are not the new ones, in the order in which they
// go.
absl::StatusOr<std::vector<std::string>> FolderWriter::OldFiles() const {
  std::set<std::string> ours = {HeadName()};
  for (const File& file : files_) ours.insert(file.name);
  std::vector<std::string> old;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    const bool is_weights = options_.replace_other_format
                                ? IsAnyWeightFileName(name)
                                : IsWeightFileName(options_.format, name);
    if (is_weights && !ours.contains(name)) old.push_back(name);
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("look through ", folder_));
  }
  std::sort(old.begin(), old.end(), GoesBefore);
  return old;
}

absl::Status FolderWriter::Remove(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    std::error_code error;
    fs::remove(Path(name), error);
    if (!error) continue;
    return absl::ErrnoToStatus(
        error.value(), absl::StrCat("remove the old weights ", Path(name)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
