#include "checkpoint/huggingface/generation_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

absl::Status Wrong(const std::string& name, const Json& value,
                   const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is ", value.dump(), ", but must be ", wanted));
}

// Null is as if it were not there.
bool Has(const Json& json, const std::string& name) {
  return json.contains(name) && !json[name].is_null();
}

absl::Status Read(const Json& json, const std::string& name,
                  std::optional<int64_t>& out) {
  if (!Has(json, name)) return absl::OkStatus();
  if (!json[name].is_number_integer()) {
    return Wrong(name, json[name], "an integer");
  }
  out = json[name].get<int64_t>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& name,
                  std::optional<double>& out) {
  if (!Has(json, name)) return absl::OkStatus();
  if (!json[name].is_number()) return Wrong(name, json[name], "a number");
  out = json[name].get<double>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, const std::string& name,
                  std::optional<bool>& out) {
  if (!Has(json, name)) return absl::OkStatus();
  if (!json[name].is_boolean()) {
    return Wrong(name, json[name], "true or false");
  }
  out = json[name].get<bool>();
  return absl::OkStatus();
}

// One id, or a list of them.
absl::Status ReadIds(const Json& json, const std::string& name,
                     std::vector<int64_t>& out) {
  if (!Has(json, name)) return absl::OkStatus();
  const Json& value = json[name];
  const Json ids = value.is_array() ? value : Json::array({value});
  for (const Json& id : ids) {
    if (!id.is_number_integer()) {
      return Wrong(name, value, "an integer or a list of them");
    }
    out.push_back(id.get<int64_t>());
  }
  return absl::OkStatus();
}

// What others sample by, and the values that change nothing.
std::vector<std::string> UnusedSettings(const Json& json) {
  const std::vector<std::pair<const char*, Json>> neutral = {
      {"begin_suppress_tokens", nullptr},
      {"bad_words_ids", nullptr},
      {"epsilon_cutoff", 0.0},
      {"encoder_repetition_penalty", 1.0},
      {"eta_cutoff", 0.0},
      {"exponential_decay_length_penalty", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"guidance_scale", nullptr},
      {"min_length", 0},
      {"min_new_tokens", nullptr},
      {"no_repeat_ngram_size", 0},
      {"num_beams", 1},
      {"penalty_alpha", nullptr},
      {"sequence_bias", nullptr},
      {"stop_strings", nullptr},
      {"suppress_tokens", nullptr},
      {"top_h", nullptr},
      {"typical_p", 1.0},
      {"watermarking_config", nullptr}};
  std::vector<std::string> warnings;
  for (const auto& [name, value] : neutral) {
    if (!Has(json, name) || json[name] == value) continue;
    warnings.push_back(absl::StrCat("generation_config.json: \"", name, "\" (",
                                    json[name].dump(), ") has no effect here"));
  }
  return warnings;
}

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const std::string& json_text) {
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(json_text));
  GenerationConfig config;
  RETURN_IF_ERROR(Read(json, "bos_token_id", config.bos_token_id));
  RETURN_IF_ERROR(ReadIds(json, "eos_token_id", config.eos_token_ids));
  RETURN_IF_ERROR(Read(json, "pad_token_id", config.pad_token_id));
  RETURN_IF_ERROR(Read(json, "do_sample", config.do_sample));
  RETURN_IF_ERROR(Read(json, "temperature", config.temperature));
  RETURN_IF_ERROR(Read(json, "top_k", config.top_k));
  RETURN_IF_ERROR(Read(json, "top_p", config.top_p));
  RETURN_IF_ERROR(Read(json, "min_p", config.min_p));
  RETURN_IF_ERROR(Read(json, "repetition_penalty", config.repetition_penalty));
  RETURN_IF_ERROR(Read(json, "max_new_tokens", config.max_new_tokens));
  config.warnings = UnusedSettings(json);
  return config;
}

absl::StatusOr<GenerationConfig> ReadGenerationConfig(
    const std::string& folder) {
  std::string path = folder + "/generation_config.json";
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    path = folder + "/config.json";
    text = ReadFile(path);
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<GenerationConfig> config = ParseGenerationConfig(*text);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

}  // namespace tessera
