// The generation_config.json of a folder: how its model likes to be sampled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// What is not in the file is unset.
struct GenerationConfig {
  std::optional<int64_t> bos_token_id = {};
  std::vector<int64_t> eos_token_ids = {};  // Any of them ends a text.
  std::optional<int64_t> pad_token_id = {};
  std::optional<bool> do_sample = {};
  std::optional<double> temperature = {};
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<int64_t> max_new_tokens = {};
  // Settings that would change what is generated and have no effect here.
  std::vector<std::string> warnings = {};
};

// From the text of a generation_config.json, or of a config.json, which older
// files have these fields in. Errors name the field and its value.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const std::string& json_text);

// Of `folder`: its generation_config.json, else its config.json.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(
    const std::string& folder);

}  // namespace tessera
