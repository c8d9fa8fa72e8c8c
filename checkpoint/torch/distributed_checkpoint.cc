#include "checkpoint/torch/distributed_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_tree.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {

struct DistributedCheckpoint::Files {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const MappedFile>> by_name;
  // Of the items, by file and offset.
  CheckedOnce<std::pair<std::string, int64_t>> checksums;
};

namespace {

absl::StatusOr<std::shared_ptr<const MappedFile>> OpenMetadata(
    const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kDistributedMetadataName);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return MappedFile::Open(path);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("look for ", path));
  }
  const bool interrupted = std::filesystem::exists(path + ".tmp", error);
  return absl::NotFoundError(absl::StrCat(
      folder, ": no ", kDistributedMetadataName, ": ",
      interrupted ? "its saving was interrupted (there is a .metadata.tmp)"
                  : "no torch distributed checkpoint, or one whose saving was "
                    "interrupted"));
}

std::string TensorWhere(const std::string& folder, const std::string& key) {
  return absl::StrCat(folder, ": tensor \"", key, "\"");
}

}  // namespace

DistributedCheckpoint::DistributedCheckpoint(std::string folder,
                                             DistributedOptions options,
                                             DistributedMetadata metadata)
    : folder_(std::move(folder)),
      options_(options),
      metadata_(std::move(metadata)),
      files_(std::make_shared<Files>()) {}

absl::StatusOr<DistributedCheckpoint> DistributedCheckpoint::Open(
    const std::string& folder, DistributedOptions options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                   OpenMetadata(folder));
  absl::StatusOr<DistributedMetadata> metadata =
      ParseDistributedMetadata(file->bytes());
  if (!metadata.ok()) return Annotate(metadata.status(), file->path());
  DistributedCheckpoint checkpoint(folder, options, *std::move(metadata));
  if (options.check_files) RETURN_IF_ERROR(checkpoint.CheckFiles());
  return checkpoint;
}

absl::Status DistributedCheckpoint::CheckFiles() const {
  std::map<std::string, int64_t> ends;
  const auto add = [&ends](const DistributedItem& item) {
    int64_t& end = ends[item.file];
    end = std::max(end, item.offset + item.length);
  };
  for (const auto& [key, item] : metadata_.values) add(item);
  for (const auto& [key, tensor] : metadata_.tensors) {
    for (const DistributedChunk& chunk : tensor.chunks) add(chunk.item);
  }
  for (const auto& [name, end] : ends) {
    ASSIGN_OR_RETURN(const auto file, OpenFile(name));
    if (file->num_bytes() >= end) continue;
    return absl::DataLossError(
        absl::StrCat(file->path(), ": truncated: has ", file->num_bytes(),
                     " bytes, the metadata wants ", end));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const MappedFile>>
DistributedCheckpoint::OpenFile(const std::string& name) const {
  const std::lock_guard lock(files_->mutex);
  std::shared_ptr<const MappedFile>& file = files_->by_name[name];
  if (file == nullptr) {
    ASSIGN_OR_RETURN(file, MappedFile::Open(absl::StrCat(folder_, "/", name)));
  }
  return file;
}

absl::StatusOr<TorchFile> DistributedCheckpoint::OpenItem(
    const DistributedItem& item) const {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, OpenFile(item.file));
  const std::string where = absl::StrCat(file->path(), ": bytes ", item.offset,
                                         " to ", item.offset + item.length);
  if (item.offset + item.length > file->num_bytes()) {
    return absl::DataLossError(
        absl::StrCat(where, ": the file ends at ", file->num_bytes()));
  }
  const std::string_view bytes = file->bytes().substr(item.offset, item.length);
  return TorchFile::Parse(bytes, where, std::move(file), options_.items);
}

DistributedPath DistributedCheckpoint::PathOf(const std::string& key) const {
  const auto found = metadata_.paths.find(key);
  return found == metadata_.paths.end() ? DistributedPath{key} : found->second;
}

absl::StatusOr<const DistributedTensor*> DistributedCheckpoint::Find(
    const std::string& key) const {
  const auto found = metadata_.tensors.find(key);
  if (found != metadata_.tensors.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat(folder_, ": has no tensor \"", key,
                                          "\" among its ",
                                          metadata_.tensors.size()));
}

absl::Status DistributedCheckpoint::CopyPiece(const DistributedTensor& tensor,
                                              const DistributedChunk& chunk,
                                              const TensorBox& box,
                                              void* out) const {
  const TensorBox part = Intersect(box, chunk.box);
  if (part.num_elements() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TorchFile file, OpenItem(chunk.item));
  ASSIGN_OR_RETURN(const TorchEntry* const entry, file.Info(""));
  if (entry->tensor.type != tensor.type ||
      entry->tensor.shape != Shape(chunk.box.sizes)) {
    return absl::DataLossError(
        absl::StrCat(file.where(), ": wanted ", std::string(tensor.type->name),
                     " ", Shape(chunk.box.sizes).ToString(), ", found ",
                     std::string(entry->tensor.type->name), " ",
                     entry->tensor.shape.ToString()));
  }
  if (options_.items.verify) {
    RETURN_IF_ERROR(files_->checksums.Check(
        {chunk.item.file, chunk.item.offset}, [&] { return file.Verify(); }));
  }
  const std::string_view storage = file.StorageOf(*entry);
  const int64_t bytes = tensor.type->element_bytes;
  ForEachRun(part, chunk.box, box, [&](int64_t from, int64_t to, int64_t run) {
    GatherElements(entry->tensor, storage, from, run,
                   static_cast<char*>(out) + to * bytes);
  });
  return absl::OkStatus();
}

absl::Status DistributedCheckpoint::ReadBox(const std::string& key,
                                            const TensorBox& box,
                                            void* out) const {
  ASSIGN_OR_RETURN(const DistributedTensor* const tensor, Find(key));
  if (box.offsets.size() != box.sizes.size() ||
      static_cast<int>(box.sizes.size()) != tensor->shape.num_dims() ||
      Intersect(box, WholeBox(tensor->shape)) != box) {
    return absl::OutOfRangeError(
        absl::StrCat(TensorWhere(folder_, key), ": wanted ", box.ToString(),
                     " of ", tensor->shape.ToString()));
  }
  for (const DistributedChunk& chunk : tensor->chunks) {
    const absl::Status status = CopyPiece(*tensor, chunk, box, out);
    if (!status.ok()) return Annotate(status, TensorWhere(folder_, key));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> DistributedCheckpoint::ReadElements(
    const std::string& key, int64_t begin, int64_t length,
    Device device) const {
  ASSIGN_OR_RETURN(const DistributedTensor* const tensor, Find(key));
  if (!tensor->type->dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(TensorWhere(folder_, key), ": no tensors of ",
                     std::string(tensor->type->name), " here"));
  }
  return ReadElementsAs(*tensor->type->dtype, key, begin, length, device);
}

absl::StatusOr<Tensor> DistributedCheckpoint::ReadElementsAs(
    DType dtype, const std::string& key, int64_t begin, int64_t length,
    Device device) const {
  ASSIGN_OR_RETURN(const DistributedTensor* const tensor, Find(key));
  TESSERA_CHECK(tensor->type->element_bytes == ElementBytes(dtype));
  const int64_t have = tensor->shape.num_elements();
  if (begin < 0 || length < 0 || length > have || begin > have - length) {
    return absl::OutOfRangeError(absl::StrCat(
        TensorWhere(folder_, key), ": wanted ", length, " elements from ",
        begin, " on, it is ", tensor->shape.ToString()));
  }
  Tensor out;
  RETURN_IF_ERROR(Try([&] {
    out = Tensor::Empty(Shape{length}, {dtype, device});
    // Queued work may still use the memory that `out` was just given.
    ComputeStream(device).Synchronize();
  }));
  char* to = static_cast<char*>(out.data());
  for (const TensorBox& box : BoxesOfRange(tensor->shape, begin, length)) {
    RETURN_IF_ERROR(ReadBox(key, box, to));
    to += box.num_elements() * tensor->type->element_bytes;
  }
  return out;
}

absl::StatusOr<Tensor> DistributedCheckpoint::Read(const std::string& key,
                                                   Device device) const {
  ASSIGN_OR_RETURN(const DistributedTensor* const tensor, Find(key));
  const Shape& shape = tensor->shape;
  ASSIGN_OR_RETURN(const Tensor elements,
                   ReadElements(key, 0, shape.num_elements(), device));
  Tensor whole;
  RETURN_IF_ERROR(Try([&] {
    whole = Tensor::View(elements.storage(), 0, shape, elements.dtype());
  }));
  return whole;
}

absl::StatusOr<PickleValue> DistributedCheckpoint::ReadValue(
    const std::string& key) const {
  const auto found = metadata_.values.find(key);
  if (found == metadata_.values.end()) {
    return absl::NotFoundError(absl::StrCat(folder_, ": has no value \"", key,
                                            "\" among its ",
                                            metadata_.values.size()));
  }
  const absl::StatusOr<TorchFile> file = OpenItem(found->second);
  if (!file.ok()) {
    return Annotate(file.status(), absl::StrCat("value \"", key, "\""));
  }
  return file->ReadValue();
}

absl::StatusOr<PickleValue> DistributedCheckpoint::ReadTree() const {
  DistributedTree tree;
  for (const auto& [key, tensor] : metadata_.tensors) {
    ASSIGN_OR_RETURN(Tensor whole, Read(key));
    RETURN_IF_ERROR(tree.Insert(PathOf(key), PickleValue(std::move(whole))));
  }
  for (const auto& [key, item] : metadata_.values) {
    ASSIGN_OR_RETURN(PickleValue value, ReadValue(key));
    RETURN_IF_ERROR(tree.Insert(PathOf(key), std::move(value)));
  }
  return std::move(tree).Take();
}

}  // namespace tessera
