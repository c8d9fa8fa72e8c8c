#include "checkpoint/convert/weight_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/convert/adapted_weights.h"
#include "checkpoint/convert/llmc_config.h"
#include "checkpoint/convert/native_weights.h"
#include "checkpoint/convert/path_kind.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors/safetensors_weights.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_weights.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr std::pair<WeightFormat, const char*> kNames[] = {
    {WeightFormat::kSafetensors, "safetensors"},
    {WeightFormat::kTorch, "bin"},
    {WeightFormat::kDistributed, "torch"},
    {WeightFormat::kNative, "native"},
    {WeightFormat::kLlmc, "llmc"}};

absl::StatusOr<OpenedWeights> OpenLlmc(const std::string& path) {
  ASSIGN_OR_RETURN(LlmcModel model, OpenLlmcModel(path));
  return OpenedWeights{WeightFormat::kLlmc,
                       std::move(model.source),
                       {},
                       ConfigOfLlmc(model.config)};
}

absl::StatusOr<OpenedWeights> OpenNative(const std::string& path) {
  ASSIGN_OR_RETURN(auto source, OpenNativeWeights(path));
  OpenedWeights opened{WeightFormat::kNative, std::move(source), {}, {}};
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  if (HasAdapter(*opened.source)) {
    ASSIGN_OR_RETURN(opened.source,
                     AddAdapterTo(std::move(opened.source), manifest));
    opened.warnings.push_back(
        absl::StrCat(path,
                     " holds a model and an adapter, which is added to the "
                     "weights that it adapts"));
  }
  // Not of what somebody's own engine trains.
  absl::StatusOr<ModelConfig> config = ParseModelConfig(manifest.model);
  if (config.ok()) opened.config = *std::move(config);
  return opened;
}

absl::StatusOr<OpenedWeights> OpenModelFolder(const std::string& path) {
  ASSIGN_OR_RETURN(FolderWeights folder, OpenFolderWeights(path));
  const bool torch = folder.format == FolderFormat::kTorch;
  return OpenedWeights{
      torch ? WeightFormat::kTorch : WeightFormat::kSafetensors,
      std::move(folder.source),
      std::move(folder.warnings),
      {}};
}

absl::Status NoWeights(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": wanted the weights of a model, got ", what));
}

absl::StatusOr<OpenedWeights> OpenKind(const std::string& path, PathKind kind) {
  std::unique_ptr<WeightSource> source;
  switch (kind) {
    case PathKind::kSafetensors: {
      ASSIGN_OR_RETURN(source, OpenSafetensorsWeights(path));
      return OpenedWeights{
          WeightFormat::kSafetensors, std::move(source), {}, {}};
    }
    case PathKind::kTorch: {
      ASSIGN_OR_RETURN(source, OpenTorchWeights(path));
      return OpenedWeights{WeightFormat::kTorch, std::move(source), {}, {}};
    }
    case PathKind::kDistributed: {
      ASSIGN_OR_RETURN(source, OpenDistributedWeights(path));
      return OpenedWeights{
          WeightFormat::kDistributed, std::move(source), {}, {}};
    }
    case PathKind::kLlmcModel:
      return OpenLlmc(path);
    case PathKind::kNative:
      return OpenNative(path);
    case PathKind::kModel:
      return OpenModelFolder(path);
    case PathKind::kLlmcTokens:
      return NoWeights(path, "tokens of llm.c");
    case PathKind::kJson:
      return NoWeights(path, "a JSON file; name its folder");
    case PathKind::kAdapter:
      return NoWeights(path, "an adapter; name its file, if that is meant");
    case PathKind::kState:
      return NoWeights(path, absl::StrCat("the state of a run, of which one "
                                          "part has to be named",
                                          NestedCheckpointHint(path)));
  }
  return absl::InternalError(path);
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  for (const auto& [known, name] : kNames) {
    if (known == format) return name;
  }
  return "unknown";
}

absl::StatusOr<WeightFormat> ParseWeightFormat(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [format, known] : kNames) {
    if (name == known) return format;
    names.emplace_back(known);
  }
  return absl::InvalidArgumentError(absl::StrCat("format: wanted one of ",
                                                 absl::StrJoin(names, ", "),
                                                 ", got \"", name, "\""));
}

absl::StatusOr<OpenedWeights> OpenWeights(const std::string& path) {
  ASSIGN_OR_RETURN(const FoundPath found, KindOfPath(path));
  ASSIGN_OR_RETURN(OpenedWeights opened, OpenKind(path, found.kind));
  opened.warnings.insert(opened.warnings.begin(), found.warnings.begin(),
                         found.warnings.end());
  return opened;
}

}  // namespace tessera
