#include "checkpoint/huggingface/weight_file_writer.h"

#include <utility>

#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/torch_writer.h"
#include "kernels/status.h"

namespace tessera {
namespace {

template <typename Writer>
class FileOf final : public WeightFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<WeightFileWriter>> Create(
      const std::string& path, const std::vector<TensorSpec>& tensors) {
    ASSIGN_OR_RETURN(Writer writer, Writer::Create(path, tensors));
    return std::unique_ptr<WeightFileWriter>(new FileOf(std::move(writer)));
  }

  absl::Status Write(const std::string& name, const Tensor& tensor) override {
    return writer_.Write(name, tensor);
  }
  absl::Status Sync() override { return writer_.Sync(); }
  absl::Status Finish() override { return writer_.Finish(); }

 private:
  explicit FileOf(Writer writer) : writer_(std::move(writer)) {}

  Writer writer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFileWriter>> WeightFileWriter::Create(
    FolderFormat format, const std::string& path,
    const std::vector<TensorSpec>& tensors) {
  return format == FolderFormat::kSafetensors
             ? FileOf<SafetensorsWriter>::Create(path, tensors)
             : FileOf<TorchWriter>::Create(path, tensors);
}

}  // namespace tessera
