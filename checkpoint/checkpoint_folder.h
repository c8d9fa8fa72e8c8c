// The checkpoints of a run as folders: their names, which are complete, and
// what is left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
};

// "FOLDER/step-00000012".
std::string CheckpointPath(const std::string& folder, int64_t step);
// Where it is written before it gets its name.
std::string UnfinishedPath(const std::string& checkpoint_path);

// The complete ones, by step. Empty when `folder` does not exist.
absl::StatusOr<std::vector<CheckpointFolder>> ListCheckpoints(
    const std::string& folder);

// Makes an empty UnfinishedPath(checkpoint_path), and removes whatever
// unfinished saves have left in `folder`.
absl::Status BeginCheckpoint(const std::string& folder,
                             const std::string& checkpoint_path);
// Gives the finished folder its name, in one step that also replaces a
// checkpoint of that name; then removes all but the `keep` newest (0: none).
absl::Status CommitCheckpoint(const std::string& folder,
                              const std::string& checkpoint_path, int keep);

}  // namespace tessera
