#include "checkpoint/convert/weight_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/convert/native_weights.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors/safetensors_weights.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_weights.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<WeightFormat, const char*> kNames[] = {
    {WeightFormat::kSafetensors, "safetensors"},
    {WeightFormat::kTorch, "bin"},
    {WeightFormat::kDistributed, "torch"},
    {WeightFormat::kNative, "native"},
    {WeightFormat::kLlmc, "llmc"}};

absl::StatusOr<OpenedWeights> OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::Open(path));
  if (IsLlmcModel(file)) {
    ASSIGN_OR_RETURN(LlmcModel model, OpenLlmcModel(path));
    return OpenedWeights{
        WeightFormat::kLlmc, std::move(model.source), {}, model.config.n_head};
  }
  if (fs::path(path).extension() == ".safetensors") {
    ASSIGN_OR_RETURN(auto source, OpenSafetensorsWeights(path));
    return OpenedWeights{WeightFormat::kSafetensors, std::move(source), {}};
  }
  ASSIGN_OR_RETURN(auto source, OpenTorchWeights(path));
  return OpenedWeights{WeightFormat::kTorch, std::move(source), {}};
}

absl::StatusOr<OpenedWeights> OpenModelFolder(const std::string& path) {
  absl::StatusOr<FolderWeights> folder = OpenFolderWeights(path);
  if (!folder.ok()) {
    const std::string hint = absl::IsNotFound(folder.status())
                                 ? NestedCheckpointHint(path)
                                 : std::string();
    return absl::Status(
        folder.status().code(),
        absl::StrCat(std::string(folder.status().message()), hint));
  }
  const bool torch = folder->format == FolderFormat::kTorch;
  return OpenedWeights{
      torch ? WeightFormat::kTorch : WeightFormat::kSafetensors,
      std::move(folder->source), std::move(folder->warnings)};
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

std::string NestedCheckpointHint(const std::string& path) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    const std::string inside = it->path().string();
    if (Exists(absl::StrCat(inside, "/", kDistributedMetadataName)) ||
        Exists(absl::StrCat(inside, "/", kManifestName))) {
      found.push_back(inside);
    }
  }
  if (found.empty()) return "";
  std::sort(found.begin(), found.end());
  return absl::StrCat("; did you mean ", absl::StrJoin(found, " or "), "?");
}

absl::StatusOr<OpenedWeights> OpenWeights(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": there is no such file or folder",
        error ? absl::StrCat(" (", error.message(), ")") : std::string()));
  }
  if (!fs::is_directory(status)) return OpenFile(path);
  if (Exists(absl::StrCat(path, "/", kDistributedMetadataName))) {
    ASSIGN_OR_RETURN(auto source, OpenDistributedWeights(path));
    return OpenedWeights{WeightFormat::kDistributed, std::move(source), {}};
  }
  if (Exists(absl::StrCat(path, "/", kManifestName))) {
    ASSIGN_OR_RETURN(auto source, OpenNativeWeights(path));
    return OpenedWeights{WeightFormat::kNative, std::move(source), {}};
  }
  return OpenModelFolder(path);
}

}  // namespace tessera
