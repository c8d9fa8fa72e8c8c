// Adapters on disk as PEFT has them: adapter_config.json and
// adapter_model.safetensors, whose tensors are called
// "base_model.model.LAYER.lora_A.weight" [rank, in] and "...lora_B.weight"
// [out, rank].
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/adapter_config.h"
#include "checkpoint/weight_source.h"
#include "fsdp/fully_shard.h"

namespace tessera {

// Writes the adapter of a sharded model (AddLora), and `texts` by file name.
// Rank 0 writes, and only the adapter is gathered. Called by all ranks. An
// error of one is returned on all. The adapter that was there stays until the
// new weights are written. Killed at any moment, the folder holds one of both
// whole or, where their configurations differ, no weights.
absl::Status SaveAdapter(FullyShardedModule& module, const std::string& folder,
                         const AdapterConfig& config,
                         const std::map<std::string, std::string>& texts = {});

// Sets the adapter of a model from `folder`/adapter_model.safetensors or .bin;
// floating types are converted. A tensor that is missing, is too much, or has
// another shape is an error that lists all, before anything is changed. The
// first is called by all ranks.
absl::Status LoadAdapter(FullyShardedModule& module, const std::string& folder);
absl::Status LoadAdapter(Module& module, const std::string& folder);

// The tensors of such a folder, under the names of the model that is adapted:
// "LAYER.lora_A.weight". Names of another form are an error.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenAdapterWeights(
    const std::string& folder);

}  // namespace tessera
