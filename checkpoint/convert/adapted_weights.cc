#include "checkpoint/convert/adapted_weights.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/merge_adapter.h"
#include "checkpoint/huggingface/model_config.h"
#include "checkpoint/whole_weight.h"
#include "kernels/status.h"
#include "runtime/nn/lora.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

constexpr char kA[] = ".lora_A.weight";
constexpr char kB[] = ".lora_B.weight";
constexpr char kWeight[] = ".weight";

// As a run writes it into its checkpoints; older ones have it in words alone.
absl::StatusOr<double> ScaleOf(const Manifest& manifest,
                               const std::string& path) {
  const auto& values = manifest.state.values;
  std::string text;
  if (const auto exact = values.find("adapter_scale"); exact != values.end()) {
    text = exact->second;
  } else if (const auto words = values.find("adapter"); words != values.end()) {
    constexpr char kBefore[] = "scale ";
    const size_t at = words->second.find(kBefore);
    if (at != std::string::npos) {
      text = words->second.substr(at + sizeof(kBefore) - 1);
      text.resize(std::min(text.size(), text.find(',')));
    }
  }
  double scale = 0;
  if (absl::SimpleAtod(text, &scale)) return scale;
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": holds a model with an adapter, whose scale its manifest does not say; "
      "have the program that trained it write the merged model"));
}

class AdaptedWeights final : public WeightSource {
 public:
  AdaptedWeights(std::unique_ptr<WeightSource> all, double scale,
                 bool transposed)
      : all_(std::move(all)), scale_(scale), transposed_(transposed) {
    for (const auto& [name, weight] : all_->weights()) {
      if (!IsLoraParameter(name)) weights_[name] = weight;
    }
  }

  // Each half of each term finds the other and their weight.
  absl::Status Pair() {
    for (const auto& [name, half] : all_->weights()) {
      if (!IsLoraParameter(name)) continue;
      const std::string layer = name.substr(0, name.size() + 1 - sizeof(kA));
      RETURN_IF_ERROR(CheckLayer(layer, half.path));
      layers_[layer + kWeight] = layer;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckLayer(const std::string& layer,
                          const std::string& path) const {
    const auto shape = [&](const char* end) -> const Shape* {
      const auto found = all_->weights().find(layer + end);
      if (found == all_->weights().end()) return nullptr;
      const Shape& of = found->second.shape;
      return of.num_dims() == 2 ? &of : nullptr;
    };
    const Shape* const a = shape(kA);
    const Shape* const b = shape(kB);
    const Shape* const w = shape(kWeight);
    const int out = transposed_ ? 1 : 0;
    if (a != nullptr && b != nullptr && w != nullptr &&
        a->dim(0) == b->dim(1) && a->dim(1) == w->dim(1 - out) &&
        b->dim(0) == w->dim(out)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        path, ": the adapter of ", layer, " does not fit: wanted ", layer, kA,
        " [rank, in], ", kB, " [out, rank] and the weight itself"));
  }

  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    const auto layer = layers_.find(weight.name);
    if (layer == layers_.end()) {
      return all_->ReadAnyElements(weight.name, begin, length, device);
    }
    const int64_t count = weight.shape.num_elements();
    const std::lock_guard lock(mutex_);
    Tensor whole = whole_name_ == weight.name ? whole_ : Tensor();
    if (!whole.defined() || whole.device() != device) {
      ASSIGN_OR_RETURN(whole, Merged(weight, layer->second, device));
    }
    const bool goes_on = begin + length < count;
    whole_ = goes_on ? whole : Tensor();
    whole_name_ = goes_on ? weight.name : "";
    return whole.Narrow(0, begin, length);
  }

  // As one dimension.
  absl::StatusOr<Tensor> Merged(const WeightInfo& weight,
                                const std::string& layer, Device device) const {
    ASSIGN_OR_RETURN(const Tensor base,
                     ReadWholeWeight(*all_, weight.name, device));
    ASSIGN_OR_RETURN(const Tensor a,
                     ReadWholeWeight(*all_, layer + kA, device));
    ASSIGN_OR_RETURN(const Tensor b,
                     ReadWholeWeight(*all_, layer + kB, device));
    Tensor merged;
    RETURN_IF_ERROR(Try([&] {
      merged = ops::Contiguous(
          AddAdapterTerm(base, {a, b, scale_, transposed_}, base.dtype()));
      merged = merged.Reshape({weight.shape.num_elements()});
    }));
    return merged;
  }

  const std::unique_ptr<WeightSource> all_;
  const double scale_;
  const bool transposed_;
  std::map<std::string, std::string> layers_;  // By the weight's name.
  mutable std::mutex mutex_;
  mutable std::string whole_name_;  // Of what is kept.
  mutable Tensor whole_;
};

}  // namespace

bool HasAdapter(const WeightSource& weights) {
  for (const auto& [name, weight] : weights.weights()) {
    if (IsLoraParameter(name)) return true;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<WeightSource>> AddAdapterTo(
    std::unique_ptr<WeightSource> weights, const Manifest& manifest) {
  const std::string path = weights->weights().begin()->second.path;
  ASSIGN_OR_RETURN(const double scale, ScaleOf(manifest, path));
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(manifest.model);
  if (!config.ok()) {
    return Annotate(config.status(),
                    absl::StrCat(path, ": the model of the adapter"));
  }
  auto adapted = std::make_unique<AdaptedWeights>(
      std::move(weights), scale, std::holds_alternative<GPT2Config>(*config));
  RETURN_IF_ERROR(adapted->Pair());
  return adapted;
}

}  // namespace tessera
