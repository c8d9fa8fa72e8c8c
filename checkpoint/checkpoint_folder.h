// The checkpoints of a run as folders: their names, which are whole, which are
// old, and what is left behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"

namespace tessera {

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
  int64_t save_number = 0;  // See Manifest::save_number.
};

// Which complete checkpoints stay once a new one is on disk: the new one, and
struct Retention {
  int last = 0;       // this many of the last saves in all (0: all), and
  int64_t every = 0;  // those whose step is a multiple of it (0: none).
};

// "rank-00002-of-00004.safetensors": what a rank writes of a checkpoint.
std::string RankFileName(int rank, int world_size);
bool IsRankFileName(const std::string& name);

// "FOLDER/step-00000012".
std::string CheckpointPath(const std::string& folder, int64_t step);
// The step of a folder's name, if it is one of ours.
std::optional<int64_t> StepOf(std::string name);
// Where it is written before it gets its name.
std::string UnfinishedPath(const std::string& checkpoint_path);

// The complete ones in the order in which they were saved; those that do not
// say come first, by step. Empty when `folder` does not exist.
absl::StatusOr<std::vector<CheckpointFolder>> ListCheckpoints(
    const std::string& folder);
// Those of `all`, as ListCheckpoints gives them, that `retention` has no place
// for. Never the one at `newest`.
std::vector<CheckpointFolder> OldCheckpoints(
    const std::vector<CheckpointFolder>& all, const std::string& newest,
    const Retention& retention);
// Whether the file that `manifest` tells of is there, with all its bytes.
absl::Status CheckFileSize(const std::string& checkpoint_path,
                           const ManifestFile& file);

// Makes an empty UnfinishedPath(checkpoint_path), and removes whatever
// unfinished saves have left in `folder`. kFailedPrecondition where
// `checkpoint_path` is there and not to be replaced: it is a checkpoint of
// another version, or holds what is none of ours.
absl::Status BeginCheckpoint(const std::string& folder,
                             const std::string& checkpoint_path);
// On another disk than BeginCheckpoint's, where several ranks may do it at
// once: makes UnfinishedPath(checkpoint_path), if it is not there.
absl::Status JoinCheckpoint(const std::string& folder,
                            const std::string& checkpoint_path);
// Then one rank removes what unfinished saves have left on that disk: all but
// the file `mark` in UnfinishedPath(checkpoint_path).
absl::Status RemoveUnfinished(const std::string& folder,
                              const std::string& checkpoint_path,
                              const std::string& mark);
// Gives the finished folder its name, in one step that also replaces a
// checkpoint of that name. Where the file system cannot exchange two names, the
// one that was there is called "NAME.old" meanwhile, which also counts as
// complete, so that one of both is there at any time.
absl::Status CommitCheckpoint(const std::string& folder,
                              const std::string& checkpoint_path);
// Removes OldCheckpoints, but for those that BeginCheckpoint would not replace.
// Says so of those of
// later steps than `newest`, which a run that went back has left behind.
absl::Status RemoveOldCheckpoints(const std::string& folder,
                                  const std::string& newest,
                                  const Retention& retention);

}  // namespace tessera
