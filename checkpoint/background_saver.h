// Saves while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/communicator.h"

namespace tessera {

// What there is to say of a save.
struct SaveReport {
  std::string path;
  int64_t step = 0;
  int64_t num_bytes = 0;       // Of all ranks' files.
  double write_seconds = 0;    // From the snapshot to the disk.
  double stopped_seconds = 0;  // That training stood still for it.
};

// "saved step 20: 12.3 MB in 0.4 s (31 MB/s), training stopped for 0.01 s".
std::string ReportLine(const SaveReport& report);

// One snapshot and one thread. Every rank makes the same calls, from one
// thread. A save that is asked for while the one before is still written waits
// for it: a slow disk slows training down and never fills memory.
class BackgroundSaver {
 public:
  // Collective; blocks.
  static absl::StatusOr<std::unique_ptr<BackgroundSaver>> Create(
      Communicator& communicator);
  // Waits for what is being written; its error is lost.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Copies what this rank writes of `tensors`, as they are now, and returns:
  // whatever happens to them or `options` afterwards, this is what is saved.
  // An error, the same on all ranks, is that of the save before, or a lack of
  // memory; then nothing is begun. Collective. `options.progress` is not used.
  absl::Status Start(const SaveOptions& options,
                     std::span<const CheckpointTensor> tensors);
  // Waits until the last save is on disk; its error, the same on all ranks.
  absl::Status Finish();

  // Of the last save that has ended well, once. Does not block.
  std::optional<SaveReport> TakeReport();
  // "saving step 20: 45%, 80 MB/s" of a save that is being written.
  std::optional<std::string> ProgressLine() const;

 private:
  struct Job;
  explicit BackgroundSaver(std::shared_ptr<Communicator> communicator);

  // Of the background thread alone while there is one.
  const std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<Job> job_;  // Null: none was begun, or it is reported.
  std::optional<SaveReport> report_;
};

}  // namespace tessera
