#include "checkpoint/torch/torch_weights.h"

#include <utility>

#include "kernels/status.h"

namespace tessera {
namespace {

class TorchWeights final : public WeightSource {
 public:
  explicit TorchWeights(std::shared_ptr<const TorchFile> file)
      : file_(std::move(file)) {
    for (const TorchEntry& entry : file_->entries()) {
      const TorchType& type = *entry.tensor.type;
      weights_[entry.name] = {entry.name,     std::string(type.name),
                              type.dtype,     entry.tensor.shape,
                              file_->where(), FindOpaqueTorchType(type.name)};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    return file_->ReadElementsAs(*weight.moved_as(), weight.name, begin, length,
                                 device);
  }

  const std::shared_ptr<const TorchFile> file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenTorchWeights(
    const std::string& path) {
  ASSIGN_OR_RETURN(TorchFile file, TorchFile::Open(path));
  RETURN_IF_ERROR(file.CheckStateDict());
  return TorchEntriesOf(std::make_shared<const TorchFile>(std::move(file)));
}

std::unique_ptr<WeightSource> TorchEntriesOf(
    std::shared_ptr<const TorchFile> file) {
  return std::make_unique<TorchWeights>(std::move(file));
}

}  // namespace tessera
