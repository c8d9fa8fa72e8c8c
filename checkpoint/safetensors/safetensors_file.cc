#include "checkpoint/safetensors/safetensors_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

constexpr int64_t kLengthBytes = 8;

absl::Status CheckDims(const std::string& path, const SafetensorsEntry& entry) {
  if (entry.shape.num_dims() <= kMaxDims) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      path, ": tensor \"", entry.name, "\": ", entry.shape.ToString(),
      " has more than ", kMaxDims, " dimensions"));
}

absl::StatusOr<int64_t> ReadHeaderLength(const ReadableFile& file) {
  if (file.num_bytes() < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the file has ", file.num_bytes(),
                     " bytes, wanted at least 8 for the header's length"));
  }
  uint64_t length = 0;
  RETURN_IF_ERROR(file.ReadAt(0, &length, kLengthBytes));
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header's length is ", length,
                     " bytes, the format allows 100000000"));
  }
  if (static_cast<int64_t>(length) > file.num_bytes() - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the header's length is ", length, " bytes, the file has ",
                     file.num_bytes() - kLengthBytes, " after it"));
  }
  return static_cast<int64_t>(length);
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const ReadableFile& file,
                                             int64_t length) {
  std::string text(length, '\0');
  RETURN_IF_ERROR(file.ReadAt(kLengthBytes, text.data(), length));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(text));
  const int64_t have = file.num_bytes() - kLengthBytes - length;
  if (have == header.data_bytes) return header;
  const std::string last =
      header.entries.empty() ? "" : header.entries.back().name;
  return absl::DataLossError(absl::StrCat(
      have < header.data_bytes ? "truncated: "
                               : "bytes after the last tensor: ",
      "wanted ", header.data_bytes, " bytes of data, the last of tensor \"",
      last, "\", found ", have));
}

}  // namespace

SafetensorsFile::SafetensorsFile(ReadableFile file, SafetensorsHeader header,
                                 int64_t data_offset)
    : file_(std::move(file)),
      header_(std::move(header)),
      data_offset_(data_offset) {
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    index_[header_.entries[i].name] = i;
  }
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(ReadableFile file, ReadableFile::Open(path));
  const absl::StatusOr<int64_t> length = ReadHeaderLength(file);
  if (!length.ok()) return Annotate(length.status(), path);
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(file, *length);
  if (!header.ok()) return Annotate(header.status(), path);
  return SafetensorsFile(std::move(file), *std::move(header),
                         kLengthBytes + *length);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries()) names.push_back(entry.name);
  return names;
}

bool SafetensorsFile::Contains(const std::string& name) const {
  return index_.contains(name);
}

absl::StatusOr<SafetensorsEntry> SafetensorsFile::Info(
    const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return header_.entries[found->second];
  return absl::NotFoundError(absl::StrCat(
      path(), ": has no tensor \"", name, "\" among its ", entries().size(),
      " tensors", entries().empty() ? "" : ", of which one is \"",
      entries().empty() ? "" : entries().front().name,
      entries().empty() ? "" : "\""));
}

absl::Status SafetensorsFile::ReadInto(const std::string& name, int64_t begin,
                                       const Tensor& out) const {
  ASSIGN_OR_RETURN(const SafetensorsEntry entry, Info(name));
  const std::string where = absl::StrCat(path(), ": tensor \"", name, "\"");
  if (entry.type->dtype != out.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": is ", entry.type->name, ", wanted ", DTypeName(out.dtype())));
  }
  const int64_t length = out.num_elements();
  if (begin < 0 || begin > entry.shape.num_elements() - length) {
    return absl::OutOfRangeError(absl::StrCat(where, ": wanted elements ",
                                              begin, " to ", begin + length,
                                              " of ", entry.shape.ToString()));
  }
  TESSERA_CHECK(out.IsContiguous() && out.device().type == DeviceType::kCpu);
  // Queued work may still use the memory that `out` was just given.
  RETURN_IF_ERROR(Try([&] { ComputeStream(out.device()).Synchronize(); }));
  const int64_t element_bytes = ElementBytes(out.dtype());
  RETURN_IF_ERROR(
      file_.ReadAt(data_offset_ + entry.begin + begin * element_bytes,
                   out.data(), length * element_bytes));
  if (out.dtype() == DType::kBool) {
    uint8_t* bytes = out.data<uint8_t>();  // A bool is 0 or 1, nothing else.
    for (int64_t i = 0; i < length; ++i) bytes[i] = bytes[i] != 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> SafetensorsFile::ReadElements(const std::string& name,
                                                     int64_t begin,
                                                     int64_t length,
                                                     Device device) const {
  ASSIGN_OR_RETURN(const SafetensorsEntry entry, Info(name));
  const int64_t num_elements = entry.shape.num_elements();
  if (!entry.type->dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat(path(), ": tensor \"", name,
                                                 "\": no tensors of ",
                                                 entry.type->name, " here"));
  }
  if (begin < 0 || length < 0 || length > num_elements ||
      begin > num_elements - length) {
    return absl::OutOfRangeError(absl::StrCat(
        path(), ": tensor \"", name, "\": wanted ", length, " elements from ",
        begin, " on, it is ", entry.shape.ToString()));
  }
  Tensor out;
  RETURN_IF_ERROR(Try([&] {
    out = Tensor::Empty(Shape{length}, {*entry.type->dtype, device});
  }));
  RETURN_IF_ERROR(ReadInto(name, begin, out));
  return out;
}

absl::StatusOr<Tensor> SafetensorsFile::Read(const std::string& name,
                                             Device device) const {
  ASSIGN_OR_RETURN(const SafetensorsEntry entry, Info(name));
  RETURN_IF_ERROR(CheckDims(path(), entry));
  ASSIGN_OR_RETURN(const Tensor elements,
                   ReadElements(name, 0, entry.shape.num_elements(), device));
  return Tensor::View(elements.storage(), 0, entry.shape, elements.dtype());
}

}  // namespace tessera
