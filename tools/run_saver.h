// Saves a training run, now or in the background, and says so.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/manifest.h"
#include "tools/run_checkpoint.h"

namespace tessera {

// All ranks make the same calls. Rank 0 prints a line a save: what it took, and
// how fast the disk was.
class RunSaver {
 public:
  // `parts` outlive the saver.
  static absl::StatusOr<std::unique_ptr<RunSaver>> Create(const RunParts& parts,
                                                          bool in_background);

  // The run as it is now, unless this step was the last that was saved. In the
  // background: waits for the save before, copies, and returns; what goes wrong
  // afterwards is returned by the next call.
  absl::Status Save(const RunState& state);
  // Waits until what was saved is on disk.
  absl::Status Finish();
  // Prints what has ended since the last call and, when asked, how far the save
  // is that is being written. No communication.
  void Report(bool progress);

 private:
  RunSaver(const RunParts& parts, std::unique_ptr<BackgroundSaver> background)
      : parts_(parts), background_(std::move(background)) {}
  absl::Status SaveNow(const RunState& state);
  absl::Status StartToSave(const RunState& state);
  void Print(const std::string& line) const;

  const RunParts parts_;
  const std::unique_ptr<BackgroundSaver> background_;  // Null: saves now.
  int64_t saved_step_ = -1;
};

}  // namespace tessera
