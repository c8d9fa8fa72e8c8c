#include "tools/adapter_run.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/merge_adapter.h"
#include "kernels/status.h"
#include "runtime/nn/low_rank.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<CausalLM>> MakeModelToTrain(
    const TrainOptions& options, AdapterConfig& adapter) {
  ASSIGN_OR_RETURN(std::shared_ptr<CausalLM> model, MakeModel(options.model));
  if (!options.adapter.lora.has_value()) return model;
  LoraConfig lora = *options.adapter.lora;
  if (lora.target_modules.empty() && lora.target_pattern.empty()) {
    lora.target_modules = DefaultLoraTargets(*model);
  }
  std::error_code error;
  const auto base = std::filesystem::absolute(options.model_folder, error);
  adapter.base_model = error ? options.model_folder : base.string();
  RETURN_IF_ERROR(Try([&] { adapter.lora = AddLora(*model, lora); }));
  return model;
}

std::string AdapterText(const LoraConfig& lora) {
  const auto joined = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return absl::StrJoin(names, ",");
  };
  std::string text =
      absl::StrCat("rank ", lora.rank, ", scale ", lora.scale(), ", dropout ",
                   lora.dropout, ", layers ", joined(lora.target_modules));
  if (!lora.exclude_modules.empty()) {
    absl::StrAppend(&text, " but ", joined(lora.exclude_modules));
  }
  return text;
}

void AdapterStartValues(Module& module, const Initializer& initializer) {
  if (dynamic_cast<LowRankProjection*>(&module) != nullptr) {
    module.ResetParameters(initializer);
  } else {
    ZeroStartValues(module, initializer);
  }
}

absl::Status LoadModelToTrain(FullyShardedModule& module,
                              const TrainOptions& options) {
  LoadOptions load;
  load.match.left_out = IsLoraParameter;
  RETURN_IF_ERROR(LoadFolderWeights(module, options.model_folder, load));
  if (options.adapter.folder.empty()) return absl::OkStatus();
  return LoadAdapter(module, options.adapter.folder);
}

absl::Status WriteFinishedAdapter(
    FullyShardedModule& module, const TrainOptions& options,
    const AdapterConfig& adapter, const std::string& folder,
    const std::map<std::string, std::string>& texts) {
  if (!options.adapter.merge) {
    std::map<std::string, std::string> beside = texts;
    beside.erase("config.json");  // Of a model, which this is not.
    return SaveAdapter(module, folder, adapter, beside);
  }
  const std::string part = folder + "/adapter";
  RETURN_IF_ERROR(SaveAdapter(module, part, adapter));
  Communicator& world = *module.mesh().world();
  absl::Status status;
  if (world.rank() == 0) {
    status = MergeAdapterFolder(
        {.base = options.model_folder,
         .adapter = part,
         .output = folder,
         .save = {.texts = texts,
                  .dtype = options.save_dtype,
                  .max_shard_bytes = options.max_shard_bytes}});
  }
  return world.AgreeOnStatus(status, "merge the adapter");
}

std::string GenerateFlags(const TrainOptions& options,
                          const std::string& folder) {
  if (!options.adapter.lora.has_value() || options.adapter.merge) {
    return "--run=" + folder;
  }
  return "--model=" + options.model_folder + " --adapter=" + folder;
}

}  // namespace tessera
