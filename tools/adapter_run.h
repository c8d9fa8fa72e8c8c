// What a run that trains an adapter does in another way.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/adapter_config.h"
#include "fsdp/fully_shard.h"
#include "runtime/nn/causal_lm.h"
#include "tools/train_options.h"

namespace tessera {

// The run's model, on the current device, with its adapter, if it has one;
// `adapter` becomes what SaveAdapter wants.
absl::StatusOr<std::shared_ptr<CausalLM>> MakeModelToTrain(
    const TrainOptions& options, AdapterConfig& adapter);

// All that decides what the adapter of a run computes, as one line.
std::string AdapterText(const LoraConfig& lora);

// A FullyShardOptions::param_init_fn: an adapter begins as it should, all else
// is going to be loaded.
void AdapterStartValues(Module& module, const Initializer& initializer);

// Reads the model of --model and the adapter of --adapter. All ranks.
absl::Status LoadModelToTrain(FullyShardedModule& module,
                              const TrainOptions& options);

// Writes the adapter to `folder` or, where the run merges, to `folder`/adapter,
// and the merged model with `texts` to `folder`. All ranks.
absl::Status WriteFinishedAdapter(
    FullyShardedModule& module, const TrainOptions& options,
    const AdapterConfig& adapter, const std::string& folder,
    const std::map<std::string, std::string>& texts);

// Those of `generate` that choose what such a run, or any other, has left in
// `folder`.
std::string GenerateFlags(const TrainOptions& options,
                          const std::string& folder);

}  // namespace tessera
