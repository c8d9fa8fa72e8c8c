// A sharded model to a Hugging Face folder.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "fsdp/fully_shard.h"

namespace tessera {

struct SaveFolderOptions {
  // Files beside the weights, by name: config.json, generation_config.json, the
  // tokenizer's.
  std::map<std::string, std::string> texts = {};
  std::optional<DType> dtype = {};  // Of floating tensors; unset: the masters'.
  int64_t max_shard_bytes = kDefaultMaxShardBytes;
};

// Writes all parameters and persistent buffers, under the names of the plain
// module and a tied one once, as FolderWriter does. Rank 0 writes, the others
// take part in the gathers; one parameter is written while the next is
// gathered, and extra memory is four copies of the largest. Called by all
// ranks. An error of one is returned on all, and the old model stays.
absl::Status SaveModelFolder(FullyShardedModule& module,
                             const std::string& folder,
                             const SaveFolderOptions& options);

// The files of `folder` that belong to a model beside its weights and its
// config.json: generation_config.json, the tokenizer's, chat templates.
absl::StatusOr<std::map<std::string, std::string>> ReadSideFiles(
    const std::string& folder);

}  // namespace tessera
