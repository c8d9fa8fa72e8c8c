// The state of a whole run in one folder, as Accelerator.save_state lays it
// out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "fsdp/accelerator.h"
#include "fsdp/fully_shard.h"
#include "runtime/optim/grad_scaler.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

// What torch's schedulers save: how far they are, and the rates of each group.
struct SchedulerState {
  std::vector<double> base_lrs;  // One a group.
  std::vector<double> last_lrs;
  int64_t last_epoch = 0;  // Steps of the scheduler.

  friend bool operator==(const SchedulerState&,
                         const SchedulerState&) = default;
};
PickleDict SchedulerDict(const SchedulerState& state);
absl::StatusOr<SchedulerState> SchedulerOf(const PickleValue& dict);

// What torch's GradScaler saves.
PickleDict ScalerDict(const GradScaler& scaler);
absl::StatusOr<GradScalerState> ScalerOf(const PickleValue& dict);

// Random numbers are a function of the seed and of counters.
struct RandomState {
  int64_t step = 0;  // Of the run.
  int64_t seed = 0;
  std::map<std::string, int64_t> counters = {};  // Of Philox, by stream.

  friend bool operator==(const RandomState&, const RandomState&) = default;
};

// What a run consists of. Optimizer i is that of model i.
struct RunObjects {
  std::vector<FullyShardedModule*> models = {};
  std::vector<Optimizer*> optimizers = {};
  std::vector<SchedulerState*> schedulers = {};
  GradScaler* scaler = nullptr;
  RandomState* random = nullptr;
};

struct SaveStateOptions {
  bool use_dcp = true;  // See StateDictFile.
};

// Writes to `folder`, which is made:
//   models and optimizers, see SaveFsdpModel, each of the type that is set
//   scheduler.bin, scheduler_1.bin, ... and scaler.pt, with torch's content
//   random_states_{rank}.pkl: step, seed and counters as plain numbers
// Called by all ranks; the error of one is returned on all. What is replaced is
// removed first, so that a save that ends early leaves no state, and never a
// mixture of two: save to a folder of its own to keep the one before.
absl::Status SaveState(Accelerator& accelerator, const std::string& folder,
                       const RunObjects& objects,
                       const SaveStateOptions& options = {});

// Reads what SaveState, or Accelerate, wrote into `objects`. A random state
// that is not ours (of Python, numpy, torch) is skipped, with one warning, and
// so is one of a rank that did not exist; `objects.random` then stays as it is.
// Other files that are missing are errors, the same on all ranks; schedulers
// and scaler change when all models and optimizers are loaded. Called by all
// ranks.
absl::Status LoadState(Accelerator& accelerator, const std::string& folder,
                       const RunObjects& objects,
                       const SaveStateOptions& options = {});

}  // namespace tessera
