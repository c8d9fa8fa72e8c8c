#include "tools/run_saver.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "checkpoint/sharded_state.h"
#include "kernels/status.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<RunSaver>> RunSaver::Create(
    const RunParts& parts, bool in_background) {
  std::unique_ptr<BackgroundSaver> background;
  if (in_background) {
    ASSIGN_OR_RETURN(background,
                     BackgroundSaver::Create(*parts.module->mesh().world()));
  }
  return std::unique_ptr<RunSaver>(new RunSaver(parts, std::move(background)));
}

absl::Status RunSaver::Save(const RunState& state) {
  if (state.step == saved_step_) return absl::OkStatus();
  RETURN_IF_ERROR(background_ == nullptr ? SaveNow(state) : StartToSave(state));
  saved_step_ = state.step;
  return absl::OkStatus();
}

absl::Status RunSaver::StartToSave(const RunState& state) {
  absl::Status status =
      background_->Start(SaveOptionsOf(parts_, state),
                         ShardedTensors(*parts_.module, *parts_.optimizer));
  Report(/*progress=*/false);
  return status;
}

absl::Status RunSaver::SaveNow(const RunState& state) {
  const auto start = std::chrono::steady_clock::now();
  SaveProgress progress;
  SaveOptions options = SaveOptionsOf(parts_, state);
  options.progress = &progress;
  SaveReport report;
  report.step = state.step;
  ASSIGN_OR_RETURN(
      report.path,
      SaveCheckpoint(*parts_.module->mesh().world(), options,
                     ShardedTensors(*parts_.module, *parts_.optimizer)));
  report.num_bytes = progress.checkpoint_bytes;
  report.write_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  report.stopped_seconds = report.write_seconds;
  Print(ReportLine(report));
  return absl::OkStatus();
}

absl::Status RunSaver::Finish() {
  if (background_ == nullptr) return absl::OkStatus();
  absl::Status status = background_->Finish();
  Report(/*progress=*/false);
  return status;
}

void RunSaver::Report(bool progress) {
  if (background_ == nullptr) return;
  if (const std::optional<SaveReport> report = background_->TakeReport()) {
    Print(ReportLine(*report));
  }
  if (!progress) return;
  if (const std::optional<std::string> line = background_->ProgressLine()) {
    Print(*line);
  }
}

void RunSaver::Print(const std::string& line) const {
  if (parts_.module->mesh().world()->rank() != 0) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace tessera
