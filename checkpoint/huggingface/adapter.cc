#include "checkpoint/huggingface/adapter.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/safetensors/safetensors_weights.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/torch_weights.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/linear.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kWeights = "adapter_model.safetensors";

// A file of PEFT under the names of the model that is adapted.
class AdapterWeights final : public WeightSource {
 public:
  static absl::StatusOr<std::unique_ptr<WeightSource>> Open(
      const std::string& folder) {
    const std::string path = absl::StrCat(folder, "/", kWeights);
    const std::string bin = folder + "/adapter_model.bin";
    std::error_code error;
    const bool is_bin = !fs::exists(path, error) && fs::exists(bin, error);
    std::unique_ptr<AdapterWeights> result(new AdapterWeights());
    ASSIGN_OR_RETURN(result->file_, is_bin ? OpenTorchWeights(bin)
                                           : OpenSafetensorsWeights(path));
    for (const auto& [name, weight] : result->file_->weights()) {
      if (!name.starts_with(kPrefix)) {
        return absl::InvalidArgumentError(
            absl::StrCat(weight.path, ": tensor \"", name,
                         "\" does not begin with \"", kPrefix, "\""));
      }
      WeightInfo info = weight;
      info.name = name.substr(std::string(kPrefix).size());
      result->weights_[info.name] = info;
    }
    return result;
  }

 protected:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    return file_->ReadElements(kPrefix + weight.name, begin, length, device);
  }

 private:
  AdapterWeights() = default;
  std::unique_ptr<WeightSource> file_;
};

MatchOptions AdapterAlone() {
  return {.left_out = [](const std::string& name) {
    return !IsLoraParameter(name);
  }};
}

bool IsTransposed(Module& module) {
  for (const NamedModule& m : module.NamedModules()) {
    if (dynamic_cast<Conv1D*>(m.module) != nullptr) return true;
  }
  return false;
}

// Everything but the weights, which are there under another name. Weights that
// would be taken for those of the new configuration go, when there is nothing
// left to write but names.
absl::Status WriteTexts(const std::string& folder,
                        const std::string& config_text,
                        const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) {
    RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", name), text));
  }
  const std::string path = folder + "/adapter_config.json";
  const absl::StatusOr<std::string> before = ReadFile(path);
  if (before.ok() && *before == config_text) return absl::OkStatus();
  ASSIGN_OR_RETURN(NewFile config, NewFile::Create(path));
  RETURN_IF_ERROR(config.WriteAt(0, config_text.data(),
                                 static_cast<int64_t>(config_text.size())));
  for (const char* name : {kWeights, "adapter_model.bin"}) {
    std::error_code ignored;
    fs::remove(absl::StrCat(folder, "/", name), ignored);
  }
  RETURN_IF_ERROR(SyncFolder(folder));
  return config.Commit();
}

std::vector<TensorSpec> AdapterSpecs(const FullyShardedModule& module) {
  std::vector<TensorSpec> specs;
  for (const ShardedParameter& p : module.Parameters()) {
    if (!IsLoraParameter(p.name)) continue;
    specs.push_back({kPrefix + p.name, p.variable.dtype(), p.global_shape});
  }
  return specs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenAdapterWeights(
    const std::string& folder) {
  return AdapterWeights::Open(folder);
}

absl::Status SaveAdapter(FullyShardedModule& module, const std::string& folder,
                         const AdapterConfig& config,
                         const std::map<std::string, std::string>& texts) {
  Communicator& world = *module.mesh().world();
  std::optional<SafetensorsWriter> writer;
  const auto begin = [&]() -> absl::Status {
    if (world.rank() != 0) return absl::OkStatus();
    RETURN_IF_ERROR(MakeFolders(folder));
    ASSIGN_OR_RETURN(
        SafetensorsWriter made,
        SafetensorsWriter::Create(absl::StrCat(folder, "/", kWeights),
                                  AdapterSpecs(module)));
    writer.emplace(std::move(made));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(world.AgreeOnStatus(Try(begin), "begin to save an adapter"));
  // What was there stays until all of the new weights are written.
  RETURN_IF_ERROR(Try([&] {
    module.ForEachFullTensor(
        [](const ShardedParameter& p) {
          return IsLoraParameter(p.name) ? p.variable.data() : Tensor();
        },
        [&](const std::string& name, const Tensor& whole) {
          if (!writer.has_value()) return;
          OrThrow(writer->Write(kPrefix + name, ops::Contiguous(whole)));
        });
  }));
  const auto end = [&]() -> absl::Status {
    if (!writer.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(WriteTexts(
        folder, AdapterConfigText(config, IsTransposed(module.module())),
        texts));
    return writer->Finish();
  };
  return world.AgreeOnStatus(Try(end), "end saving an adapter");
}

absl::Status LoadAdapter(FullyShardedModule& module,
                         const std::string& folder) {
  Communicator& world = *module.mesh().world();
  const absl::StatusOr<std::unique_ptr<WeightSource>> weights =
      OpenAdapterWeights(folder);
  RETURN_IF_ERROR(world.AgreeOnStatus(weights.status(), "open adapter"));
  const absl::Status status =
      LoadWeights(module, weights->get(), {.match = AdapterAlone()});
  return status.ok() ? status : Annotate(status, folder);
}

absl::Status LoadAdapter(Module& module, const std::string& folder) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> weights,
                   OpenAdapterWeights(folder));
  const absl::Status status = LoadWeights(module, *weights, AdapterAlone());
  return status.ok() ? status : Annotate(status, folder);
}

}  // namespace tessera
