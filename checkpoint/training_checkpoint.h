// Saves and resumes a run: each rank its part, all ranks together or none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "fsdp/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// What one rank keeps of a tensor: elements [begin, begin +
// tensor.num_elements()) of it in row-major order. `tensor` is contiguous and
// may be empty.
struct CheckpointTensor {
  std::string name;  // The same on all ranks; unique.
  Tensor tensor;
  Shape global_shape;
  int64_t begin = 0;
};

struct SaveOptions {
  std::string folder;  // Of all checkpoints of the run.
  std::string model;   // See Manifest::model.
  RunState state;
  // Older complete checkpoints are removed once the new one is on disk, but
  // for this many newest ones in all; 0 removes none.
  int keep = 0;
};

// [Note: done or absent] Every rank writes its file into "step-N.tmp"; rank 0
// writes the manifest when all have ended, and then renames the folder to
// "step-N". A folder of that name is therefore whole, and what a save that
// failed or was killed left behind is never taken for one: the next save
// removes it.
//
// Called by all ranks; blocks. The error of one rank, with file and reason, is
// returned on all, and the checkpoints that were there stay. Returns the path
// of the new one. A checkpoint of the same step is replaced at once.
absl::StatusOr<std::string> SaveCheckpoint(
    Communicator& communicator, const SaveOptions& options,
    std::span<const CheckpointTensor> tensors);

// The complete checkpoint of the largest step in `folder`, found by looking
// and not by a pointer; kNotFound when there is none. Rank 0 looks, and all
// ranks get its answer.
absl::StatusOr<std::string> FindLatestCheckpoint(Communicator& communicator,
                                                 const std::string& folder);
// The same for one process, e.g. a program that only reads.
absl::StatusOr<std::string> FindLatestCheckpoint(const std::string& folder);

// An opened checkpoint, checked on all ranks before anything is changed.
class CheckpointReader {
 public:
  // Called by all ranks; blocks. Errors, the same on all ranks: a missing,
  // truncated or changed file, another number of ranks, another model.
  static absl::StatusOr<CheckpointReader> Open(Communicator& communicator,
                                               const std::string& path,
                                               const std::string& model);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }
  // Called by all ranks; blocks. Fills each rank's pieces. An error on all
  // ranks, and nothing is written, when names, shapes, types or ranges differ
  // from what was saved, on whichever side something is too much.
  absl::Status Read(Communicator& communicator,
                    std::span<const CheckpointTensor> tensors) const;

 private:
  CheckpointReader(std::string path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  std::string path_;
  Manifest manifest_;
};

}  // namespace tessera
