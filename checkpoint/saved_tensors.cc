#include "checkpoint/saved_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"

namespace tessera {
namespace {

struct PlannedRead {
  const WantedElements* wanted;
  PartOfPiece part;
};

// By file, so that one is open at a time.
using Plan = std::map<int, std::vector<PlannedRead>>;

absl::Status AddToPlan(const Manifest& manifest, const WantedElements& wanted,
                       Plan& plan) {
  const auto found = manifest.tensors.find(wanted.name);
  if (found == manifest.tensors.end()) {
    return absl::NotFoundError(
        absl::StrCat("has no tensor \"", wanted.name, "\""));
  }
  const ManifestTensor& tensor = found->second;
  const int64_t length = wanted.into.num_elements();
  const int64_t whole = tensor.shape.num_elements();
  if (tensor.dtype != wanted.into.dtype() || wanted.begin < 0 ||
      length > whole || wanted.begin > whole - length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", wanted.name, "\" is ", DTypeName(tensor.dtype), " ",
        tensor.shape.ToString(), ", wanted ", DTypeName(wanted.into.dtype()),
        " elements ", wanted.begin, " to ", wanted.begin + length));
  }
  for (const PartOfPiece& part : PiecesWithin(tensor, wanted.begin, length)) {
    plan[part.piece.file].push_back({&wanted, part});
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const Manifest& manifest,
                              std::span<const WantedElements> wanted) {
  Plan plan;
  for (const WantedElements& w : wanted) {
    RETURN_IF_ERROR(AddToPlan(manifest, w, plan));
  }
  return plan;
}

absl::Status CheckRead(const SafetensorsFile& file, const PlannedRead& read) {
  const std::string& name = read.wanted->name;
  ASSIGN_OR_RETURN(const SafetensorsEntry entry, file.Info(name));
  const Shape wanted{read.part.piece.length};
  if (entry.shape == wanted && entry.type->dtype == read.wanted->into.dtype()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      file.path(), ": tensor \"", name, "\" is ", entry.type->name, " ",
      entry.shape.ToString(), ", the manifest says ",
      DTypeName(read.wanted->into.dtype()), " ", wanted.ToString()));
}

absl::Status DoRead(const SafetensorsFile& file, const PlannedRead& read) {
  const Tensor& into = read.wanted->into;
  const PartOfPiece& part = read.part;
  const int64_t offset =
      into.storage_offset() + part.begin - read.wanted->begin;
  return file.ReadInto(
      read.wanted->name, part.begin - part.piece.begin,
      Tensor::View(into.storage(), offset, Shape{part.length}, into.dtype()));
}

using OpenedFile = std::shared_ptr<const SafetensorsFile>;
using OpenFile = std::function<absl::StatusOr<OpenedFile>(int)>;
using UseRead =
    std::function<absl::Status(const SafetensorsFile&, const PlannedRead&)>;

absl::Status ForEachRead(const SavedTensors& saved, const OpenFile& open,
                         std::span<const WantedElements> wanted,
                         const UseRead& use) {
  const absl::StatusOr<Plan> plan = MakePlan(saved.manifest(), wanted);
  if (!plan.ok()) return Annotate(plan.status(), saved.path());
  for (const auto& [index, reads] : *plan) {
    ASSIGN_OR_RETURN(const OpenedFile file, open(index));
    for (const PlannedRead& read : reads) RETURN_IF_ERROR(use(*file, read));
  }
  return absl::OkStatus();
}

}  // namespace

// Those that were opened, by number.
class SavedTensors::OpenFiles {
 public:
  absl::StatusOr<OpenedFile> Open(const std::string& folder,
                                  const Manifest& manifest, int index) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(index);
    if (found != files_.end()) return found->second;
    const ManifestFile& file = manifest.files[index];
    RETURN_IF_ERROR(CheckFileSize(folder, file));
    ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(absl::StrCat(
                                                 folder, "/", file.name)));
    ++num_opened_;
    num_entries_ += static_cast<int64_t>(opened.entries().size());
    if (num_entries_ > kMostOpenEntries) {
      files_.clear();
      num_entries_ = static_cast<int64_t>(opened.entries().size());
    }
    return files_[index] =
               std::make_shared<const SafetensorsFile>(std::move(opened));
  }

  int64_t num_opened() {
    const std::lock_guard lock(mutex_);
    return num_opened_;
  }

 private:
  std::mutex mutex_;
  std::map<int, OpenedFile> files_;
  int64_t num_entries_ = 0;
  int64_t num_opened_ = 0;
};

SavedTensors::SavedTensors(std::string path, Manifest manifest)
    : path_(std::move(path)),
      manifest_(std::move(manifest)),
      files_(std::make_shared<OpenFiles>()) {}

int64_t SavedTensors::num_opened() const { return files_->num_opened(); }

std::vector<PartOfPiece> PiecesWithin(const ManifestTensor& tensor,
                                      int64_t begin, int64_t length) {
  std::vector<PartOfPiece> parts;
  if (length == 0) return parts;
  const int64_t end = begin + length;
  auto it = std::partition_point(
      tensor.pieces.begin(), tensor.pieces.end(),
      [begin](const ManifestPiece& p) { return p.begin + p.length <= begin; });
  for (; it != tensor.pieces.end() && it->begin < end; ++it) {
    const int64_t first = std::max(begin, it->begin);
    const int64_t last = std::min(end, it->begin + it->length);
    parts.push_back({*it, first, last - first});
  }
  return parts;
}

absl::StatusOr<SavedTensors> SavedTensors::Open(const std::string& path) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path));
  return SavedTensors(path, std::move(manifest));
}

absl::Status SavedTensors::Verify(int index) const {
  const ManifestFile& file = manifest_.files.at(index);
  const std::string path = absl::StrCat(path_, "/", file.name);
  RETURN_IF_ERROR(CheckFileSize(path_, file));
  ASSIGN_OR_RETURN(const uint64_t checksum, FileChecksum(path));
  if (checksum == file.checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, ": its checksum is ", ChecksumText(checksum), ", was saved with ",
      ChecksumText(file.checksum), "; the file was changed or damaged"));
}

absl::Status SavedTensors::CheckReadable(
    std::span<const WantedElements> wanted) const {
  const auto open = [this](int index) {
    return files_->Open(path_, manifest_, index);
  };
  return ForEachRead(*this, open, wanted, CheckRead);
}

absl::Status SavedTensors::Read(std::span<const WantedElements> wanted) const {
  const auto open = [this](int index) {
    return files_->Open(path_, manifest_, index);
  };
  RETURN_IF_ERROR(ForEachRead(*this, open, wanted, DoRead));
  for (const WantedElements& w : wanted) w.into.storage()->BumpVersion();
  return absl::OkStatus();
}

}  // namespace tessera
