// A training run on disk: its checkpoints, and the model that it ends in.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "checkpoint/training_checkpoint.h"
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
  Retention keep;
};

// Of a checkpoint in `folder`/checkpoints.
SaveOptions SaveOptionsOf(const RunParts& parts, const RunState& state);

// Sets model and optimizer from the checkpoint `resume`: "latest", or the path
// of a checkpoint, of a run, or of a folder of checkpoints, whose latest is
// meant. Any number of ranks may have saved it. Called by all ranks. Another
// text or seed than the checkpoint's is an error.
absl::StatusOr<RunState> ResumeRun(const RunParts& parts,
                                   const std::string& resume,
                                   const RunState& fresh);

// The run's folder, which need not be there: agreed on by all ranks, and
// without checkpoints of another run unless this one resumes, and without an
// adapter where this run ends in a model, or a model where it ends in an
// adapter.
absl::StatusOr<std::string> ChooseRunFolder(Communicator& world,
                                            const TrainOptions& options);

// Writes the model to the run's folder, with `texts` (config.json, the
// tokenizer's files, options.yaml) beside it. Called by all ranks.
absl::Status WriteFinishedRun(const RunParts& parts,
                              const TrainOptions& options,
                              const std::map<std::string, std::string>& texts);

}  // namespace tessera
