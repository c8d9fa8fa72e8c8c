#include "checkpoint/huggingface/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Wrong(const std::string& key, const Json& value,
                   const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is ", value.dump(), "; wanted ", wanted));
}

// Keys that say nothing about what an adapter computes.
bool IsInert(const std::string& key) {
  static const std::set<std::string> keys = {
      "auto_mapping",      "fan_in_fan_out", "inference_mode",
      "megatron_core",     "peft_version",   "revision",
      "qalora_group_size", "runtime_config", "layers_pattern"};
  return keys.contains(key);
}

// Keys of which some values are supported.
struct Supported {
  std::string key;
  std::vector<Json> values;
  std::string wanted;
};
const std::vector<Supported>& SupportedValues() {
  static const std::vector<Supported> all = {
      {"peft_type", {"LORA"}, "\"LORA\", the only one here"},
      {"task_type", {nullptr, "CAUSAL_LM"}, "\"CAUSAL_LM\""},
      {"bias", {"none"}, "\"none\": biases stay"},
      // Others change the base, too.
      {"init_lora_weights",
       {true, false, "gaussian", "orthogonal"},
       "true, false, \"gaussian\" or \"orthogonal\""}};
  return all;
}

bool IsEmpty(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         (value.is_structured() && value.empty());
}

absl::StatusOr<std::vector<std::string>> Names(const std::string& key,
                                               const Json& value) {
  std::vector<std::string> names;
  if (value.is_null()) return names;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    if (!name.is_string()) return Wrong(key, value, "names of modules");
    names.push_back(name.get<std::string>());
  }
  return names;
}

// One key and its value at a time.
class Parser {
 public:
  absl::Status Take(const std::string& key, const Json& value) {
    if (key == "r") return TakeRank(value);
    if (key == "lora_alpha") return TakeNumber(key, value, config_.lora.alpha);
    if (key == "lora_dropout") {
      return TakeNumber(key, value, config_.lora.dropout);
    }
    if (key == "target_modules") return TakeTargets(value);
    if (key == "exclude_modules") return TakeExcluded(value);
    if (key == "use_rslora" || key == "base_model_name_or_path") {
      return TakeOptional(key, value);
    }
    return CheckKnown(key, value);
  }

  const AdapterConfig& config() const { return config_; }

 private:
  absl::Status TakeRank(const Json& value) {
    if (!value.is_number_integer()) return Wrong("r", value, "an integer");
    config_.lora.rank = value.get<int64_t>();
    return absl::OkStatus();
  }

  static absl::Status TakeNumber(const std::string& key, const Json& value,
                                 double& out) {
    if (!value.is_number()) return Wrong(key, value, "a number");
    out = value.get<double>();
    return absl::OkStatus();
  }

  // A list, or one pattern.
  absl::Status TakeTargets(const Json& value) {
    if (value.is_string()) {
      config_.lora.target_pattern = value.get<std::string>();
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(config_.lora.target_modules,
                     Names("target_modules", value));
    return absl::OkStatus();
  }

  absl::Status TakeExcluded(const Json& value) {
    if (value.is_string()) {
      return Wrong("exclude_modules", value, "a list; patterns are not known");
    }
    ASSIGN_OR_RETURN(config_.lora.exclude_modules,
                     Names("exclude_modules", value));
    return absl::OkStatus();
  }

  absl::Status TakeOptional(const std::string& key, const Json& value) {
    if (value.is_null()) return absl::OkStatus();
    if (key == "use_rslora") {
      if (!value.is_boolean()) return Wrong(key, value, "true or false");
      config_.lora.rank_stabilized = value.get<bool>();
      return absl::OkStatus();
    }
    if (!value.is_string()) return Wrong(key, value, "a folder or a name");
    config_.base_model = value.get<std::string>();
    return absl::OkStatus();
  }

  static absl::Status CheckKnown(const std::string& key, const Json& value) {
    for (const Supported& known : SupportedValues()) {
      if (key != known.key) continue;
      const bool fits =
          std::count(known.values.begin(), known.values.end(), value) > 0;
      return fits ? absl::OkStatus() : Wrong(key, value, known.wanted);
    }
    if (IsInert(key) || IsEmpty(value)) return absl::OkStatus();
    return Wrong(key, value, "nothing: this option is not supported");
  }

  AdapterConfig config_;
};

}  // namespace

absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json_text) {
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(json_text));
  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    if (json.contains(key)) continue;
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing"));
  }
  // First, since all other keys depend on it.
  Parser parser;
  RETURN_IF_ERROR(parser.Take("peft_type", json["peft_type"]));
  for (const auto& [key, value] : json.items()) {
    RETURN_IF_ERROR(parser.Take(key, value));
  }
  RETURN_IF_ERROR(Try([&] { CheckConfig(parser.config().lora); }));
  return parser.config();
}

absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(text);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

std::string AdapterConfigText(const AdapterConfig& config, bool transposed) {
  const LoraConfig& lora = config.lora;
  Json json;
  json["base_model_name_or_path"] =
      config.base_model.empty() ? Json() : Json(config.base_model);
  json["bias"] = "none";
  json["exclude_modules"] =
      lora.exclude_modules.empty() ? Json() : Json(lora.exclude_modules);
  json["fan_in_fan_out"] = transposed;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  const bool whole =
      std::abs(lora.alpha) < 1e15 && std::floor(lora.alpha) == lora.alpha;
  json["lora_alpha"] =
      whole ? Json(static_cast<int64_t>(lora.alpha)) : Json(lora.alpha);
  json["lora_dropout"] = lora.dropout;
  json["modules_to_save"] = nullptr;
  json["peft_type"] = "LORA";
  json["r"] = lora.rank;
  json["target_modules"] = lora.target_pattern.empty()
                               ? Json(lora.target_modules)
                               : Json(lora.target_pattern);
  json["task_type"] = "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = lora.rank_stabilized;
  return json.dump(2) + "\n";
}

}  // namespace tessera
