#include "checkpoint/huggingface/merge_adapter.h"

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/huggingface/folder_writer.h"
#include "checkpoint/whole_weight.h"
#include "kernels/status.h"
#include "runtime/nn/low_rank.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

class Merge {
 public:
  Merge(const MergeAdapterOptions& options, const WeightSource& base,
        const WeightSource& adapter)
      : options_(options), base_(base), adapter_(adapter) {}

  absl::Status Plan() {
    ASSIGN_OR_RETURN(const AdapterConfig config,
                     ReadAdapterConfig(options_.adapter));
    scale_ = config.lora.scale();
    ASSIGN_OR_RETURN(const FolderConfig model, ReadFolderConfig(options_.base));
    transposed_ = std::holds_alternative<GPT2Config>(model.model);
    for (const auto& [name, weight] : adapter_.weights()) {
      if (name.ends_with(".lora_A.weight")) {
        Add(name.substr(0, name.rfind(".lora_A.weight")));
        continue;
      }
      if (!IsLoraParameter(name)) {
        problems_.push_back(absl::StrCat("unexpected ", name));
        continue;
      }
      const std::string layer = name.substr(0, name.rfind(".lora_B.weight"));
      if (adapter_.weights().contains(layer + ".lora_A.weight")) continue;
      problems_.push_back(absl::StrCat(layer, ".lora_B lacks its other half"));
    }
    if (problems_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(options_.adapter, " does not fit ", options_.base, ": ",
                     absl::StrJoin(problems_, "; ")));
  }

  std::vector<TensorSpec> Specs() const {
    std::vector<TensorSpec> specs;
    for (const auto& [name, weight] : base_.weights()) {
      specs.push_back({name, TypeOnDisk(weight), weight.shape});
    }
    return specs;
  }

  absl::StatusOr<Tensor> Merged(const std::string& name) const {
    ASSIGN_OR_RETURN(const Tensor weight,
                     ReadWholeWeight(base_, name, CurrentDevice()));
    const DType dtype = TypeOnDisk(base_.weights().at(name));
    const auto layer = layer_of_.find(name);
    if (layer == layer_of_.end()) return ops::Cast(weight, dtype);
    ASSIGN_OR_RETURN(const Tensor a,
                     ReadWholeWeight(adapter_, layer->second + ".lora_A.weight",
                                     CurrentDevice()));
    ASSIGN_OR_RETURN(const Tensor b,
                     ReadWholeWeight(adapter_, layer->second + ".lora_B.weight",
                                     CurrentDevice()));
    return AddAdapterTerm(weight, {a, b, scale_, transposed_}, dtype);
  }

 private:
  DType TypeOnDisk(const WeightInfo& weight) const {
    return IsFloating(*weight.dtype)
               ? options_.save.dtype.value_or(*weight.dtype)
               : *weight.dtype;
  }

  // The base's files may leave out the prefix of the base model.
  void Add(const std::string& layer) {
    std::string name = layer + ".weight";
    if (!base_.weights().contains(name)) {
      name = name.substr(name.find('.') + 1);
    }
    const auto weight = base_.weights().find(name);
    const auto b = adapter_.weights().find(layer + ".lora_B.weight");
    if (b == adapter_.weights().end()) {
      problems_.push_back(absl::StrCat(layer, ".lora_A lacks its other half"));
      return;
    }
    if (weight == base_.weights().end()) {
      problems_.push_back(absl::StrCat("the base has no ", layer, ".weight"));
      return;
    }
    const Shape& a = adapter_.weights().at(layer + ".lora_A.weight").shape;
    const Shape& wanted = weight->second.shape;
    const bool fits = a.num_dims() == 2 && b->second.shape.num_dims() == 2 &&
                      wanted.num_dims() == 2 &&
                      a.dim(0) == b->second.shape.dim(1) &&
                      a.dim(1) == wanted.dim(transposed_ ? 0 : 1) &&
                      b->second.shape.dim(0) == wanted.dim(transposed_ ? 1 : 0);
    if (!fits) {
      problems_.push_back(absl::StrCat(layer, " is ", wanted.ToString(),
                                       ", its adapter ", a.ToString(), " and ",
                                       b->second.shape.ToString()));
    }
    layer_of_[name] = layer;
  }

  const MergeAdapterOptions& options_;
  const WeightSource& base_;
  const WeightSource& adapter_;
  double scale_ = 1;
  bool transposed_ = false;
  std::map<std::string, std::string> layer_of_;  // By tensor of the base.
  std::vector<std::string> problems_;
};

}  // namespace

Tensor AddAdapterTerm(const Tensor& weight, const AdapterTerm& term,
                      DType dtype) {
  const DType computed =
      weight.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  Tensor delta = LowRankDelta(term.a, term.b, term.scale, computed);
  if (term.transposed) delta = delta.Transpose(0, 1);
  return ops::Cast(ops::Add(ops::Cast(weight, computed), delta), dtype);
}

absl::Status MergeAdapterFolder(const MergeAdapterOptions& options) {
  ASSIGN_OR_RETURN(const FolderWeights base, OpenFolderWeights(options.base));
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> adapter,
                   OpenAdapterWeights(options.adapter));
  for (const WeightSource* source : {base.source.get(), adapter.get()}) {
    for (const auto& [name, weight] : source->weights()) {
      if (weight.dtype.has_value()) continue;
      return absl::UnimplementedError(
          absl::StrCat(weight.path, ": tensor \"", name, "\" is ",
                       weight.type_name, ", which is not read here"));
    }
  }
  Merge merge(options, *base.source, *adapter);
  RETURN_IF_ERROR(merge.Plan());
  ASSIGN_OR_RETURN(
      const std::unique_ptr<FolderWriter> writer,
      FolderWriter::Create(options.output, merge.Specs(),
                           {.max_shard_bytes = options.save.max_shard_bytes}));
  for (const TensorSpec& spec : merge.Specs()) {
    RETURN_IF_ERROR(Try([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const Tensor merged, merge.Merged(spec.name));
      return writer->Write(spec.name, ops::Contiguous(merged));
    }));
  }
  return writer->Finish(options.save.texts);
}

}  // namespace tessera
