#include "checkpoint/torch/torch_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/torch/torch_pickle.h"
#include "kernels/status.h"
#include "runtime/data/utf8.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

absl::StatusOr<int64_t> SpecBytes(const TensorSpec& spec) {
  int64_t num_bytes = ElementBytes(spec.dtype);
  for (const int64_t size : spec.shape.sizes()) {
    if (size < 0 || !MultiplySizes(num_bytes, size, num_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", spec.name, "\": the shape ",
                       spec.shape.ToString(), " overflows 63 bits"));
    }
  }
  return num_bytes;
}

absl::StatusOr<int64_t> WriteArchive(NewFile& file, int64_t base,
                                     const std::string& root,
                                     const PickleValue& value) {
  ASSIGN_OR_RETURN(const TorchPickle pickle, MakeTorchPickle(value));
  std::vector<int64_t> sizes;
  for (const Tensor& t : pickle.storages) sizes.push_back(t.num_bytes());
  TorchArchiveWriter archive(file, base, root);
  RETURN_IF_ERROR(archive.Start(pickle.text, sizes));
  for (size_t i = 0; i < pickle.storages.size(); ++i) {
    const Tensor& tensor = pickle.storages[i];
    if (tensor.num_bytes() == 0) continue;
    RETURN_IF_ERROR(Try([&] { ComputeStream(tensor.device()).Synchronize(); }));
    RETURN_IF_ERROR(archive.Append(i, tensor.data(), tensor.num_bytes()));
  }
  return archive.Finish();
}

}  // namespace

TorchWriter::TorchWriter(std::unique_ptr<NewFile> file,
                         std::vector<TensorSpec> tensors)
    : file_(std::move(file)),
      archive_(*file_, 0, TorchArchiveRoot(file_->path())),
      tensors_(std::move(tensors)) {}

absl::StatusOr<TorchWriter> TorchWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& tensors) {
  std::vector<int64_t> sizes;
  for (const TensorSpec& spec : tensors) {
    const absl::StatusOr<int64_t> num_bytes = SpecBytes(spec);
    if (!num_bytes.ok()) return Annotate(num_bytes.status(), path);
    sizes.push_back(*num_bytes);
  }
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  TorchWriter writer(std::make_unique<NewFile>(std::move(file)), tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    if (writer.index_.emplace(name, i).second && IsUtf8(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the name \"", name, "\" stands twice or is no UTF-8"));
  }
  RETURN_IF_ERROR(writer.archive_.Start(MakeStateDictPickle(tensors), sizes));
  return writer;
}

absl::Status TorchWriter::WriteElements(const std::string& name, int64_t begin,
                                        const Tensor& tensor) {
  const auto found = index_.find(name);
  const std::string where =
      absl::StrCat(file_->path(), ": tensor \"", name, "\"");
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat(where, ": was not announced"));
  }
  const TensorSpec& spec = tensors_[found->second];
  const int64_t bytes = ElementBytes(spec.dtype);
  if (spec.dtype != tensor.dtype() ||
      begin * bytes != archive_.appended_bytes(found->second) ||
      tensor.num_elements() > spec.shape.num_elements() - begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": announced as ", DTypeName(spec.dtype), " ",
        spec.shape.ToString(), ", and ",
        archive_.appended_bytes(found->second) / bytes,
        " elements written; got ", tensor.ToString(), " at element ", begin));
  }
  if (!tensor.IsContiguous() || tensor.device().type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": wanted contiguous memory on a CPU, got ", tensor.ToString()));
  }
  if (tensor.num_bytes() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Try([&] { ComputeStream(tensor.device()).Synchronize(); }));
  return archive_.Append(found->second, tensor.data(), tensor.num_bytes());
}

absl::Status TorchWriter::Write(const std::string& name, const Tensor& tensor) {
  const auto found = index_.find(name);
  if (found != index_.end() &&
      tensors_[found->second].shape != tensor.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_->path(), ": tensor \"", name, "\": announced as ",
        tensors_[found->second].shape.ToString(), ", got ", tensor.ToString()));
  }
  return WriteElements(name, 0, tensor);
}

absl::Status TorchWriter::Sync() {
  if (is_whole_) return absl::OkStatus();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t wanted, SpecBytes(tensors_[i]));
    if (archive_.appended_bytes(i) == wanted) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        file_->path(), ": tensor \"", tensors_[i].name, "\": wrote ",
        archive_.appended_bytes(i), " of ", wanted, " bytes"));
  }
  RETURN_IF_ERROR(archive_.Finish().status());
  is_whole_ = true;
  return file_->Sync();
}

absl::Status TorchWriter::Finish() {
  RETURN_IF_ERROR(Sync());
  return file_->Commit();
}

absl::Status WriteTorchFile(const std::string& path, const PickleValue& value) {
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  const absl::Status status =
      WriteArchive(file, 0, TorchArchiveRoot(path), value).status();
  if (!status.ok()) return Annotate(status, path);
  return file.Commit();
}

absl::StatusOr<int64_t> WriteTorchItem(NewFile& file, int64_t base,
                                       const PickleValue& value) {
  return WriteArchive(file, base, "archive", value);
}

}  // namespace tessera
