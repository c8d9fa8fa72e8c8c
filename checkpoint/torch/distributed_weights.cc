// A distributed checkpoint as a source of weights.
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "kernels/status.h"

namespace tessera {
namespace {

class DistributedWeights final : public WeightSource {
 public:
  explicit DistributedWeights(DistributedCheckpoint checkpoint)
      : checkpoint_(std::move(checkpoint)) {}

  absl::Status ListWeights() {
    std::set<std::string> first;
    for (const auto& [key, tensor] : checkpoint_.metadata().tensors) {
      const DistributedPath path = checkpoint_.PathOf(key);
      const auto* text = std::get_if<std::string>(path.data());
      first.insert(path.size() < 2 || text == nullptr ? "" : *text);
    }
    const bool one_root = first.size() == 1 && !first.begin()->empty();
    for (const auto& [key, tensor] : checkpoint_.metadata().tensors) {
      DistributedPath path = checkpoint_.PathOf(key);
      if (one_root) path.erase(path.begin());
      const std::string name = DistributedKey(path);
      const WeightInfo weight = {name,
                                 std::string(tensor.type->name),
                                 tensor.type->dtype,
                                 tensor.shape,
                                 checkpoint_.folder(),
                                 FindOpaqueTorchType(tensor.type->name)};
      if (!weights_.emplace(name, weight).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            checkpoint_.folder(), ": tensor \"", name, "\" stands twice"));
      }
      keys_[name] = key;
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    return checkpoint_.ReadElementsAs(*weight.moved_as(), keys_.at(weight.name),
                                      begin, length, device);
  }

  DistributedCheckpoint checkpoint_;
  std::map<std::string, std::string> keys_;  // By name.
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenDistributedWeights(
    const std::string& folder) {
  ASSIGN_OR_RETURN(DistributedCheckpoint checkpoint,
                   DistributedCheckpoint::Open(folder));
  auto weights = std::make_unique<DistributedWeights>(std::move(checkpoint));
  RETURN_IF_ERROR(weights->ListWeights());
  return weights;
}

}  // namespace tessera
