#include "checkpoint/safetensors/safetensors_writer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/utf8.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

absl::Status CheckText(const std::string& what, const std::string& text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " \"", absl::CHexEscape(text),
                   "\" is no UTF-8, which safetensors files want"));
}

absl::StatusOr<SafetensorsHeader> MakeHeader(
    const std::vector<TensorSpec>& tensors,
    std::map<std::string, std::string> metadata) {
  SafetensorsHeader header;
  for (const TensorSpec& tensor : tensors) {
    SafetensorsEntry entry;
    RETURN_IF_ERROR(CheckText("the name of tensor", tensor.name));
    entry.name = tensor.name;
    entry.type = &SafetensorsTypeOf(tensor);
    entry.shape = tensor.shape;
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tuple(-a.type->rank, a.name) <
                     std::tuple(-b.type->rank, b.name);
            });
  for (SafetensorsEntry& entry : header.entries) {
    ASSIGN_OR_RETURN(const int64_t num_bytes,
                     SafetensorsBytes(entry.name, *entry.type, entry.shape));
    entry.begin = header.data_bytes;
    entry.end = header.data_bytes += num_bytes;
  }
  metadata.emplace("format", "pt");
  for (const auto& [key, value] : metadata) {
    RETURN_IF_ERROR(CheckText("the key of metadata", key));
    RETURN_IF_ERROR(CheckText("the metadata", value));
  }
  header.metadata = std::move(metadata);
  return header;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(NewFile file, SafetensorsHeader header,
                                     const std::string& text)
    : file_(std::move(file)),
      header_(std::move(header)),
      data_offset_(static_cast<int64_t>(sizeof(uint64_t) + text.size())),
      written_bytes_(header_.entries.size(), 0) {
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    index_[header_.entries[i].name] = i;
  }
}

absl::Status SafetensorsWriter::Put(int64_t offset, const void* data,
                                    int64_t num_bytes) {
  if (offset == checksum_bytes_) {
    checksum_.Append(data, num_bytes);
    checksum_bytes_ += num_bytes;
  }
  return file_.WriteAt(offset, data, num_bytes);
}

std::optional<uint64_t> SafetensorsWriter::checksum() const {
  if (checksum_bytes_ != num_bytes()) return std::nullopt;
  return checksum_.digest();
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& tensors,
    std::map<std::string, std::string> metadata) {
  absl::StatusOr<SafetensorsHeader> header =
      MakeHeader(tensors, std::move(metadata));
  if (!header.ok()) return Annotate(header.status(), path);
  const std::string text = SerializeSafetensorsHeader(*header);
  // The reader's checks: a name that stands twice.
  if (absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(text);
      !parsed.ok()) {
    return Annotate(parsed.status(), path);
  }
  const uint64_t length = text.size();
  if (static_cast<int64_t>(length) > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the header of ", tensors.size(), " tensors would have ",
        length, " bytes, the format allows 100000000"));
  }
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  SafetensorsWriter writer(std::move(file), *std::move(header), text);
  RETURN_IF_ERROR(writer.Put(0, &length, sizeof(length)));
  RETURN_IF_ERROR(
      writer.Put(sizeof(length), text.data(), static_cast<int64_t>(length)));
  return writer;
}

absl::Status SafetensorsWriter::WriteElements(const std::string& name,
                                              int64_t begin,
                                              const Tensor& tensor) {
  const auto found = index_.find(name);
  const std::string where =
      absl::StrCat(file_.path(), ": tensor \"", name, "\"");
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat(where, ": was not announced"));
  }
  const SafetensorsEntry& entry = header_.entries[found->second];
  if (entry.type->moved_as() != tensor.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": announced as ", entry.type->name, " ", entry.shape.ToString(),
        ", got ", tensor.ToString(), " at element ", begin));
  }
  if (!tensor.IsContiguous() || tensor.device().type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": wanted contiguous memory on a CPU, got ", tensor.ToString()));
  }
  RETURN_IF_ERROR(Try([&] { ComputeStream(tensor.device()).Synchronize(); }));
  return WriteHostElements(name, begin, tensor.data(), tensor.num_elements());
}

absl::Status SafetensorsWriter::WriteHostElements(const std::string& name,
                                                  int64_t begin,
                                                  const void* data,
                                                  int64_t num_elements) {
  const auto found = index_.find(name);
  const std::string where =
      absl::StrCat(file_.path(), ": tensor \"", name, "\"");
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat(where, ": was not announced"));
  }
  const SafetensorsEntry& entry = header_.entries[found->second];
  if (begin < 0 || begin > entry.shape.num_elements() - num_elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": announced as ", entry.type->name, " ", entry.shape.ToString(),
        ", got ", num_elements, " elements at element ", begin));
  }
  const int64_t element_bytes = entry.type->num_bits / 8;
  RETURN_IF_ERROR(Put(data_offset_ + entry.begin + begin * element_bytes, data,
                      num_elements * element_bytes));
  written_bytes_[found->second] += num_elements * element_bytes;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Write(const std::string& name,
                                      const Tensor& tensor) {
  const auto found = index_.find(name);
  if (found != index_.end() &&
      header_.entries[found->second].shape != tensor.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor \"", name, "\": announced as ",
                     header_.entries[found->second].shape.ToString(), ", got ",
                     tensor.ToString()));
  }
  return WriteElements(name, 0, tensor);
}

absl::Status SafetensorsWriter::Sync() {
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    const SafetensorsEntry& entry = header_.entries[i];
    if (written_bytes_[i] == entry.num_bytes()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(file_.path(), ": tensor \"", entry.name, "\": wrote ",
                     written_bytes_[i], " of ", entry.num_bytes(), " bytes"));
  }
  return file_.Sync();
}

absl::Status SafetensorsWriter::Finish() {
  RETURN_IF_ERROR(Sync());
  return file_.Commit();
}

}  // namespace tessera
