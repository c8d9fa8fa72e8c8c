// What a training run can be told about adapters.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/nn/lora.h"

namespace tessera {

struct AdapterOptions {
  // Set: the model stays as it is and an adapter learns. Without target modules
  // those of DefaultLoraTargets are meant.
  std::optional<LoraConfig> lora = {};
  std::string folder;  // Of the adapter to go on from; empty: it is new.
  bool merge = false;  // The run ends in a plain model.
};

// The folder of the model that --adapter was trained on, as its
// adapter_config.json says; empty without --adapter. A model that is not here
// is an error.
absl::StatusOr<std::string> ModelOfAdapterFlag();

// From flags; `model_folder` is that of the model, empty for a new one. Flags
// that would have no effect are errors that name them. Of files only the
// adapter_config.json of --adapter is opened.
absl::StatusOr<AdapterOptions> AdapterOptionsFromFlags(
    const std::string& model_folder);

}  // namespace tessera
