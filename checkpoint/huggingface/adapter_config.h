// The adapter_config.json of a folder that PEFT, or SaveAdapter, has written.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/nn/lora.h"

namespace tessera {

struct AdapterConfig {
  LoraConfig lora;
  std::string base_model;  // Folder or name of what was adapted; may be empty.
};

// From the text of an adapter_config.json. Another kind of adapter than LORA,
// and an option that would change what the adapter computes and is not known
// here (biases, DoRA, modules that are saved whole, ranks that differ, ...), is
// an error that names it; what is null, false or empty changes nothing.
absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json_text);
// Of `folder`/adapter_config.json.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& folder);

// As PEFT reads it. `transposed`: the model keeps weights as [in, out] (GPT-2).
std::string AdapterConfigText(const AdapterConfig& config, bool transposed);

}  // namespace tessera
