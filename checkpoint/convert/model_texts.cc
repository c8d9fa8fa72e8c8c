#include "checkpoint/convert/model_texts.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/manifest.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigName[] = "config.json";
constexpr int64_t kNumBytes = 256;  // Ids that need no tokenizer.

// The value of `name` in the options that a run keeps, lines "name: 'value'"
// with each quote doubled.
std::string OptionOf(const std::string& options, const std::string& name) {
  const std::string before = absl::StrCat("\n", name, ": '");
  const std::string text = "\n" + options;
  size_t at = text.find(before);
  if (at == std::string::npos) return "";
  std::string value;
  for (at += before.size(); at < text.size(); ++at) {
    if (text[at] == '\'' && text.substr(at, 2) != "''") return value;
    if (text[at] == '\'') ++at;
    value += text[at];
  }
  return "";
}

// Where the texts of a checkpoint may be, the nearest first.
absl::StatusOr<std::vector<std::string>> FoldersOfCheckpoint(
    const std::string& path) {
  std::error_code error;
  fs::path checkpoint = fs::canonical(path, error);
  if (error) checkpoint = path;
  std::vector<std::string> folders = {path};
  if (checkpoint.parent_path().filename() == "checkpoints") {
    folders.push_back(checkpoint.parent_path().parent_path());
  }
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  const auto options = manifest.state.values.find("options");
  if (options == manifest.state.values.end()) return folders;
  const std::string model = OptionOf(options->second, "model");
  if (Exists(absl::StrCat(model, "/", kConfigName))) folders.push_back(model);
  return folders;
}

// Of floating tensors, as a config says it.
DType DTypeOf(const WeightSource& source) {
  for (const auto& [name, weight] : source.weights()) {
    if (weight.dtype.has_value() && IsFloating(*weight.dtype)) {
      return *weight.dtype;
    }
  }
  return DType::kFloat32;
}

// Of a config that is understood.
std::optional<int64_t> NumIds(const std::string& config_json) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(config_json);
  if (!config.ok()) return std::nullopt;
  return std::visit([](const auto& c) -> int64_t { return c.vocab_size; },
                    *config);
}

void WarnOfMissing(const std::vector<std::string>& folders, ModelTexts& into) {
  const std::string where = absl::StrJoin(folders, " or ");
  const auto config = into.texts.find(kConfigName);
  if (config == into.texts.end()) {
    into.warnings.push_back(absl::StrCat(
        "there is no config.json in ", where,
        ": what is written are weights alone, and no model's folder"));
    return;
  }
  for (const char* name : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
    if (into.texts.contains(name)) return;
  }
  if (NumIds(config->second) == kNumBytes) return;
  into.warnings.push_back(
      absl::StrCat("there is no tokenizer.json in ", where,
                   ": copy the tokenizer's files to the model yourself"));
}

}  // namespace

absl::StatusOr<ModelTexts> TextsBeside(const OpenedWeights& weights,
                                       const std::string& path) {
  ModelTexts found;
  std::error_code error;
  std::vector<std::string> folders;
  if (weights.format == WeightFormat::kNative) {
    ASSIGN_OR_RETURN(folders, FoldersOfCheckpoint(path));
  } else if (fs::is_directory(path, error)) {
    folders = {path};
  }
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(auto texts, ReadSideFiles(folder));
    absl::StatusOr<std::string> config =
        ReadFile(absl::StrCat(folder, "/", kConfigName));
    if (config.ok()) texts[kConfigName] = *std::move(config);
    found.texts.merge(texts);
  }
  if (weights.config.has_value()) {
    std::string& text = found.texts[kConfigName];
    const bool same = !text.empty() && ParseModelConfig(text).ok();
    text = FolderConfigText(*weights.config, DTypeOf(*weights.source),
                            same ? text : "");
  }
  if (!folders.empty()) WarnOfMissing(folders, found);
  return found;
}

}  // namespace tessera
