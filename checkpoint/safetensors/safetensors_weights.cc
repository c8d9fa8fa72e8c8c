#include "checkpoint/safetensors/safetensors_weights.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "kernels/status.h"
#include "runtime/data/mapped_file.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

class SafetensorsWeights final : public WeightSource {
 public:
  SafetensorsWeights(const SafetensorsFile& header,
                     std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)) {
    const auto& entries = header.entries();
    const int64_t data_bytes = entries.empty() ? 0 : entries.back().end;
    const int64_t data_offset = file_->num_bytes() - data_bytes;
    for (const SafetensorsEntry& entry : entries) {
      weights_[entry.name] = {
          entry.name,        entry.type->name,
          entry.type->dtype, entry.shape,
          header.path(),     FindOpaqueSafetensorsType(entry.type->name)};
      offsets_[entry.name] = data_offset + entry.begin;
    }
  }

 protected:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    const DType dtype = *weight.moved_as();
    const int64_t element_bytes = ElementBytes(dtype);
    const int64_t offset = offsets_.at(weight.name) + begin * element_bytes;
    const char* data = file_->bytes().data() + offset;
    if (length == 0) return Tensor::Empty({0}, {dtype, device});
    file_->Prefetch(offset, length * element_bytes);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % element_bytes == 0;
    if (!aligned || dtype == DType::kBool) {
      return Copy(data, length, dtype, device);
    }
    return Tensor::View(
        Storage::Borrowed(device, const_cast<char*>(data),
                          length * element_bytes,
                          std::const_pointer_cast<MappedFile>(file_)),
        0, {length}, dtype);
  }

 private:
  static absl::StatusOr<Tensor> Copy(const char* data, int64_t length,
                                     DType dtype, Device device) {
    Tensor copy;
    RETURN_IF_ERROR(Try([&] {
      copy = Tensor::Empty({length}, {dtype, device});
      // Queued work may still use the memory that it was given.
      ComputeStream(device).Synchronize();
      std::memcpy(copy.data(), data, copy.num_bytes());
      if (dtype != DType::kBool) return;
      auto* bytes = copy.data<uint8_t>();
      for (int64_t i = 0; i < length; ++i) bytes[i] = bytes[i] != 0;
    }));
    return copy;
  }

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, int64_t> offsets_;  // Of the tensors in the file.
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenSafetensorsWeights(
    const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile header, SafetensorsFile::Open(path));
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                   MappedFile::Open(path));
  if (file->num_bytes() != header.num_bytes()) {
    return absl::AbortedError(
        absl::StrCat(path, ": was replaced while it was being opened"));
  }
  return std::make_unique<SafetensorsWeights>(header, std::move(file));
}

}  // namespace tessera
