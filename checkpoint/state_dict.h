// A sharded model's state dictionary in memory: full, sharded or local.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/row_parts.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict_type.h"

namespace tessera {

// Values by the names of the plain model, a tied parameter under each of its
// names; then persistent buffers, whole. A rank that has none (full, for rank 0
// alone) has no entry.
struct ModelStateDict {
  struct Entry {
    std::string name;
    TensorRows rows;  // Whole, or this rank's.
  };

  StateDictType type = StateDictType::kFullStateDict;
  std::vector<Entry> entries;
  // Local ones: which elements of which parameters the entries are, and on
  // which rank of how many. Empty when it is not known.
  std::string layout = {};

  // Looks at one after the other. Null when there is none.
  const Entry* Find(const std::string& name) const;
};

// The dictionary of the type that is set (SetStateDictType). Collective.
//
// Full: whole tensors, copies; with rank0_only the other ranks have none.
// Sharded: of each parameter the rank's ceil(rows / ranks) rows, which version
// 2 shares with the model.
// Local: for each unit an entry "UNIT._flat_param" ("_flat_param" of the root;
// with the type behind it where parameters have several), the elements that the
// rank keeps, one parameter after the other, without padding.
// Where nothing is sharded, sharded and local ones are full ones of all ranks,
// with a warning.
// An error of one rank, say, for lack of memory, is returned on all.
absl::StatusOr<ModelStateDict> GetModelStateDict(FullyShardedModule& module);

// Sets the model from a dictionary of the type that is set. Collective. One
// error on all ranks, that lists all names, before anything is changed: of what
// is missing, too much or of another shape, or has integers for floating values
// or the other way round; a local dictionary, of another
// layout (ranks, units). Full: with rank0_only, from rank 0's, else each rank
// from its own.
absl::Status LoadModelStateDict(FullyShardedModule& module,
                                const ModelStateDict& dict);

}  // namespace tessera
