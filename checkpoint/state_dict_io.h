// State dictionaries as files, under the names that Accelerate gives them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/optimizer_state_dict.h"
#include "checkpoint/state_dict.h"
#include "fsdp/fully_shard.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

struct StateDictFile {
  int index = 0;  // Of the model or optimizer in its run.
  // Sharded ones as one torch distributed checkpoint, for any number of ranks.
  // Otherwise a file a rank, for as many ranks and the same sharding.
  bool use_dcp = true;
};

// By the type that is set, of index i and rank r:
//
//             model                              optimizer
//   full      pytorch_model_fsdp[_i].bin         optimizer[_i].bin
//   local     pytorch_model_fsdp[_i]_rank{r}.bin folder optimizer_{i}
//   sharded   folder pytorch_model_fsdp_{i}      folder optimizer_{i}
//   - no dcp  pytorch_model_fsdp_{i}_rank{r}.bin optimizer_{i}_rank{r}.bin
//
// where [_i] is left out for 0.
std::string ModelFileName(StateDictType type, const StateDictFile& file,
                          int rank);
std::string OptimizerFileName(StateDictType type, const StateDictFile& file,
                              int rank);

// Writes GetModelStateDict (GetOptimizerStateDict) to `folder`, which is made;
// torch reads all files but local ones. Called by all ranks; the error of one
// is returned on all. A file appears when it is complete. Full ones are written
// by rank 0.
absl::Status SaveFsdpModel(FullyShardedModule& module,
                           const std::string& folder,
                           const StateDictFile& file = {});
absl::Status SaveFsdpOptimizer(FullyShardedModule& module,
                               const Optimizer& optimizer,
                               const std::string& folder,
                               const StateDictFile& file = {});

// Reads them back, whoever wrote them. Called by all ranks. `folder` is what
// was given for saving or, of sharded ones, the very folder
// "pytorch_model_fsdp_{i}" ("optimizer_{i}"). Errors, the same on all ranks and
// before anything is changed: a missing file, names and shapes that differ
// (all are listed); of local ones and files a rank, another number of ranks.
// Full models are read by rank 0, optimizers by each rank, its part.
absl::Status LoadFsdpModel(FullyShardedModule& module,
                           const std::string& folder,
                           const StateDictFile& file = {});
absl::Status LoadFsdpOptimizer(FullyShardedModule& module, Optimizer& optimizer,
                               const std::string& folder,
                               const StateDictFile& file = {});

}  // namespace tessera
