#include "checkpoint/saved_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
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

absl::Status ForEachRead(const SavedTensors& saved,
                         std::span<const WantedElements> wanted,
                         const std::function<absl::Status(
                             const SafetensorsFile&, const PlannedRead&)>& f) {
  const absl::StatusOr<Plan> plan = MakePlan(saved.manifest(), wanted);
  if (!plan.ok()) return Annotate(plan.status(), saved.path());
  for (const auto& [index, reads] : *plan) {
    const ManifestFile& file = saved.manifest().files[index];
    RETURN_IF_ERROR(CheckFileSize(saved.path(), file));
    ASSIGN_OR_RETURN(const SafetensorsFile opened,
                     SafetensorsFile::Open(saved.path() + "/" + file.name));
    for (const PlannedRead& read : reads) RETURN_IF_ERROR(f(opened, read));
  }
  return absl::OkStatus();
}

}  // namespace

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
  return ForEachRead(*this, wanted, CheckRead);
}

absl::Status SavedTensors::Read(std::span<const WantedElements> wanted) const {
  RETURN_IF_ERROR(ForEachRead(*this, wanted, DoRead));
  for (const WantedElements& w : wanted) w.into.storage()->BumpVersion();
  return absl::OkStatus();
}

}  // namespace tessera
