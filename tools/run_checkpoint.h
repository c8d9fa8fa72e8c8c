// A training run on disk: its checkpoints, and the model that it ends in.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "fsdp/fully_shard.h"
#include "runtime/optim/optimizer.h"
#include "tools/train_options.h"

namespace tessera {

// What belongs together in a checkpoint. Owns nothing.
struct RunParts {
  FullyShardedModule* module = nullptr;
  Optimizer* optimizer = nullptr;
  std::string model_text;  // The model's config.json.
  std::string folder;      // Of the run.
  int keep = 0;
};

// Saves the run in `folder`/checkpoints; returns the checkpoint's path. Called
// by all ranks.
absl::StatusOr<std::string> SaveRun(const RunParts& parts,
                                    const RunState& state);

// Sets model and optimizer from the checkpoint `resume` ("latest", or a path).
// Called by all ranks. Another text or seed than the checkpoint's is an error.
absl::StatusOr<RunState> ResumeRun(const RunParts& parts,
                                   const std::string& resume,
                                   const RunState& fresh);

// The run's folder: made, agreed on by all ranks, and without checkpoints of
// another run unless this one resumes.
absl::StatusOr<std::string> PrepareRunFolder(Communicator& world,
                                             const TrainOptions& options);

// Writes the model to the run's folder, with `texts` (config.json, the
// tokenizer's files, options.yaml) beside it. Called by all ranks.
absl::Status WriteFinishedRun(const RunParts& parts,
                              const TrainOptions& options,
                              const std::map<std::string, std::string>& texts);

}  // namespace tessera
