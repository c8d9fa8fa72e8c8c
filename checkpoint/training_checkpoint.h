// Saves and resumes a run: each rank its part, all ranks together or none; on
// as many ranks as before, or others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/saved_tensors.h"
#include "fsdp/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct SaveOptions {
  std::string folder;  // Of all checkpoints of the run.
  std::string model;   // See Manifest::model.
  RunState state;
  Retention keep;             // All, unless told.
  std::string sharding = {};  // See Manifest::sharding.
  SaveProgress* progress = nullptr;
};

// [Note: done or absent] Every rank writes its file into "step-N.tmp"; rank 0
// writes the manifest when all have ended, and then renames the folder to
// "step-N". All is on disk before the next thing begins: files before the
// manifest, the manifest before the rename, the rename before an old checkpoint
// goes. A folder of that name is therefore whole, whenever the process or the
// machine ends, and what a save that failed or was killed left behind is never
// taken for one: the next save removes it.
//
// Where hosts have disks of their own at `folder`, each disk gets the files of
// its ranks and the manifest, and rank 0's is the last that is renamed.
//
// Called by all ranks; blocks. The error of one rank, with file and reason, is
// returned on all, and the checkpoints that were there stay. Returns the path
// of the new one. A checkpoint of the same step is replaced at once.
absl::StatusOr<std::string> SaveCheckpoint(
    Communicator& communicator, const SaveOptions& options,
    std::span<const CheckpointTensor> tensors);
// The same of memory that nobody writes meanwhile, from any thread.
absl::StatusOr<std::string> SavePieces(Communicator& communicator,
                                       const SaveOptions& options,
                                       std::span<const HostPiece> pieces);

// The whole checkpoint that was saved last into `folder`, found by looking and
// not by a pointer: its manifest can be read, and every file that this tells of
// has its size. One that is not whole is passed over, with a warning. kNotFound
// when there is none. Rank 0 looks which there are, a file may be on any rank's
// disk, and all ranks get the same answer. What was saved last counts, not the
// largest step: a run may have gone back to an earlier one.
absl::StatusOr<std::string> FindLatestCheckpoint(Communicator& communicator,
                                                 const std::string& folder);
// The same for one process, e.g. a program that only reads.
absl::StatusOr<std::string> FindLatestCheckpoint(const std::string& folder);

struct ReadOptions {
  bool ignore_missing = false;     // Wanted, not saved: they stay as they are.
  bool ignore_unexpected = false;  // Saved, not wanted.
  // Of another shape, element type or order of dims: they stay as they are.
  bool ignore_mismatched = false;
  // Saved names that begin so are not even unexpected; empty: none.
  std::string passed_over = {};
};

// How what is wanted differs from what was saved.
struct TensorDifferences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  // "w is float32 [2, 3], wanted float32 [3, 2]".
  std::vector<std::string> mismatched;
  std::vector<std::string> equal;

  // An error that lists every name that `options` does not ignore; also when
  // nothing is left to read.
  absl::Status AsStatus(const ReadOptions& options) const;
};

// An opened checkpoint, checked on all ranks before anything is changed.
class CheckpointReader {
 public:
  // Called by all ranks; blocks. Rank 0 reads the manifest and tells it to the
  // others, and the ranks share the files to verify: where there are as many
  // ranks as wrote them, each needs to see its own alone. Errors, the same on
  // all ranks: a missing, truncated or changed file, another model.
  static absl::StatusOr<CheckpointReader> Open(Communicator& communicator,
                                               const std::string& path,
                                               const std::string& model);
  // Opens what FindLatestCheckpoint finds in `folder`. One whose files are
  // there and damaged, which Open's kDataLoss says, is passed over as well.
  static absl::StatusOr<CheckpointReader> OpenLatest(Communicator& communicator,
                                                     const std::string& folder,
                                                     const std::string& model);

  const Manifest& manifest() const { return saved_.manifest(); }
  const std::string& path() const { return saved_.path(); }

  // No communication.
  TensorDifferences Compare(std::span<const CheckpointTensor> tensors) const;
  // Called by all ranks; blocks. Whether Read would read.
  absl::Status Check(Communicator& communicator,
                     std::span<const CheckpointTensor> tensors,
                     const ReadOptions& options = {}) const;
  // Called by all ranks; blocks. Fills each rank's pieces, whatever pieces were
  // saved. An error on all ranks, and nothing is written, when names, shapes or
  // types differ from what was saved, on whichever side something is too much,
  // or a file that a rank needs is not there. Extra memory is the headers of
  // the files, up to SavedTensors::kMostOpenEntries.
  absl::Status Read(Communicator& communicator,
                    std::span<const CheckpointTensor> tensors,
                    const ReadOptions& options = {}) const;

 private:
  explicit CheckpointReader(SavedTensors saved) : saved_(std::move(saved)) {}
  // What Read will read on this rank, once it has been checked.
  absl::StatusOr<std::vector<WantedElements>> Plan(
      std::span<const CheckpointTensor> tensors,
      const ReadOptions& options) const;

  SavedTensors saved_;
};

}  // namespace tessera
