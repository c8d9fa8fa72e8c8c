#include "checkpoint/huggingface/folder_config.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/huggingface/write_config.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// "GPT2" or "Llama": what class names of transformers begin with.
std::string ClassPrefix(const ModelConfig& config) {
  if (std::holds_alternative<GPT2Config>(config)) return "GPT2";
  return FamilyName(std::get<LlamaConfig>(config).family);
}

absl::Status CheckArchitectures(const Json& json, const ModelConfig& config) {
  const auto found = json.find("architectures");
  if (found == json.end() || found->is_null()) return absl::OkStatus();
  const std::string prefix = ClassPrefix(config);
  const std::vector<std::string> supported = {
      prefix + (prefix == "GPT2" ? "LMHeadModel" : "ForCausalLM"),
      prefix + "Model"};
  for (const Json& name : *found) {
    for (const std::string& known : supported) {
      if (name == known) return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: \"architectures\" is ", found->dump(),
                   "; of this model_type ", absl::StrJoin(supported, " and "),
                   " are supported"));
}

absl::StatusOr<std::optional<DType>> ReadDType(const Json& json) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null() || *found == "auto") continue;
    if (*found == "float32") return DType::kFloat32;
    if (*found == "bfloat16") return DType::kBFloat16;
    if (*found == "float16") return DType::kFloat16;
    if (*found == "float64") return DType::kFloat64;
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: \"", key, "\" is ", found->dump(),
                     "; float32, bfloat16, float16 and float64 are supported"));
  }
  return std::optional<DType>();
}

// Known to every reader, or without a meaning for what is computed here.
const std::set<std::string>& HarmlessKeys() {
  static const std::set<std::string> keys = absl::StrSplit(
      "_attn_implementation _model_name_or_path _name_or_path "
      "add_cross_attention architectures bos_token_id "
      "chunk_size_feed_forward dtype eos_token_id id2label is_decoder "
      "is_encoder_decoder label2id layer_types max_window_layers n_ctx "
      "output_attentions output_hidden_states pad_token_id pretraining_tp "
      "problem_type reorder_and_upcast_attn return_dict rope_parameters "
      "rope_scaling rope_theta sliding_window summary_activation "
      "summary_first_dropout summary_proj_to_labels summary_type "
      "summary_use_proj task_specific_params tokenizer_class torch_dtype "
      "transformers.js_config transformers_version unk_token_id use_cache "
      "use_sliding_window",
      ' ');
  return keys;
}

std::vector<std::string> UnusedSettings(const Json& json,
                                        const ModelConfig& config) {
  const Json used = Json::parse(SerializeModelConfig(config));
  std::vector<std::string> warnings;
  for (const auto& [key, value] : json.items()) {
    if (used.contains(key) || HarmlessKeys().contains(key) || value.is_null()) {
      continue;
    }
    warnings.push_back(absl::StrCat("config.json: \"", key, "\" (",
                                    value.dump(), ") has no effect here"));
  }
  return warnings;
}

}  // namespace

absl::StatusOr<FolderConfig> ParseFolderConfig(const std::string& json_text) {
  FolderConfig config;
  ASSIGN_OR_RETURN(config.model, ParseModelConfig(json_text));
  config.text = json_text;
  const Json json = Json::parse(json_text);
  RETURN_IF_ERROR(CheckArchitectures(json, config.model));
  ASSIGN_OR_RETURN(config.dtype, ReadDType(json));
  config.warnings = UnusedSettings(json, config.model);
  return config;
}

absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadFile(folder + "/config.json");
  if (!text.ok()) {
    const std::string replaced = absl::StrCat(folder, "/", kReplacedConfigName);
    if (!Exists(replaced)) return text.status();
    return absl::Status(
        text.status().code(),
        absl::StrCat(std::string(text.status().message()),
                     ": a save of another model to this folder was cut off; "
                     "save again, or, if the weights are still the old ones, "
                     "rename ",
                     replaced));
  }
  absl::StatusOr<FolderConfig> config = ParseFolderConfig(*text);
  if (!config.ok()) return Annotate(config.status(), folder);
  return config;
}

std::string FolderConfigText(const ModelConfig& model, DType dtype,
                             const std::string& original) {
  Json json = original.empty() ? Json::object() : Json::parse(original);
  const Json ours = Json::parse(SerializeModelConfig(model));
  for (const auto& [key, value] : ours.items()) json[key] = value;
  json.erase("dtype");
  json["torch_dtype"] = std::string(DTypeName(dtype));
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> ConfigTextWithDType(const std::string& json_text,
                                                DType dtype) {
  const absl::Status read = ParseJsonObject(json_text).status();
  if (!read.ok()) return Annotate(read, "config.json");
  Json json = Json::parse(json_text);
  const std::string name = DTypeName(dtype);
  const bool has_new = json.contains("dtype");
  if (has_new) json["dtype"] = name;
  if (!has_new || json.contains("torch_dtype")) json["torch_dtype"] = name;
  return json.dump(2) + "\n";
}

}  // namespace tessera
