// What a config.json says beside the model's shape: the architecture it names,
// the element type it was saved in, settings that are not used here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/model_config.h"
#include "kernels/dtype.h"

namespace tessera {

// Where a folder's config.json is while it is replaced, and stays when the save
// is killed just then: see [Note: the old model stays] in folder_writer.h.
inline constexpr char kReplacedConfigName[] = "config.json.replaced";

struct FolderConfig {
  std::string text;  // As it stands in the file.
  ModelConfig model;
  // "torch_dtype" or "dtype"; nothing when neither is there.
  std::optional<DType> dtype = {};
  std::vector<std::string> warnings;  // Settings that have no effect here.
};

// ParseModelConfig, and: an architecture that is not the language model (or the
// base model) of its type, or an element type that is not floating, is an error
// that names it.
absl::StatusOr<FolderConfig> ParseFolderConfig(const std::string& json_text);
// Of `folder`/config.json. Says so where a save that was killed has left
// kReplacedConfigName alone.
absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& folder);

// The config.json of `model` with its tensors in `dtype`. `original`, where not
// empty, is the text that the model was read from: what is in it and unknown
// here is kept.
std::string FolderConfigText(const ModelConfig& model, DType dtype,
                             const std::string& original = "");
// The same config.json, of weights that are in `dtype` now: "torch_dtype" and
// "dtype" say so, whichever stand there; if neither does, the first.
absl::StatusOr<std::string> ConfigTextWithDType(const std::string& json_text,
                                                DType dtype);

}  // namespace tessera
