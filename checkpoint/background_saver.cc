#include "checkpoint/background_saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Megabytes(int64_t num_bytes) {
  return static_cast<double>(num_bytes) / 1e6;
}

double Rate(int64_t num_bytes, double seconds) {
  return Megabytes(num_bytes) / std::max(seconds, 1e-6);
}

std::vector<int> AllRanks(const Communicator& communicator) {
  std::vector<int> ranks(communicator.world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The pieces' elements in memory of their own, which `pieces` then name.
std::unique_ptr<char[]> Snapshot(std::vector<HostPiece>& pieces) {
  int64_t num_bytes = 0;
  for (const HostPiece& piece : pieces) num_bytes += piece.num_bytes();
  auto memory = std::make_unique_for_overwrite<char[]>(num_bytes);
  char* to = memory.get();
  for (HostPiece& piece : pieces) {
    if (piece.length == 0) continue;
    std::memcpy(to, piece.data, piece.num_bytes());
    piece.data = to;
    to += piece.num_bytes();
  }
  return memory;
}

}  // namespace

std::string ReportLine(const SaveReport& report) {
  return absl::StrFormat(
      "saved step %d: %.1f MB in %.2f s (%.0f MB/s), training stopped for "
      "%.2f s",
      report.step, Megabytes(report.num_bytes), report.write_seconds,
      Rate(report.num_bytes, report.write_seconds), report.stopped_seconds);
}

// A save from its snapshot to its end.
struct BackgroundSaver::Job {
  SaveOptions options;
  std::vector<HostPiece> pieces;
  std::unique_ptr<char[]> memory;
  SaveProgress progress;
  Clock::time_point start;
  SaveReport report;
  absl::StatusOr<std::string> path = std::string();
  std::atomic<bool> done = false;  // All of the above is final.
  std::thread thread;

  void Run(Communicator& communicator) {
    const absl::Status thrown =
        Try([&] { path = SavePieces(communicator, options, pieces); });
    if (!thrown.ok()) path = thrown;
    memory.reset();
    report.write_seconds = SecondsSince(start);
    report.num_bytes = progress.checkpoint_bytes;
    if (path.ok()) report.path = *path;
    done = true;
  }
};

BackgroundSaver::BackgroundSaver(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {}

BackgroundSaver::~BackgroundSaver() { (void)Finish(); }

absl::StatusOr<std::unique_ptr<BackgroundSaver>> BackgroundSaver::Create(
    Communicator& communicator) {
  ASSIGN_OR_RETURN(std::shared_ptr<Communicator> own,
                   communicator.Split(AllRanks(communicator), "checkpoint"));
  return std::unique_ptr<BackgroundSaver>(new BackgroundSaver(std::move(own)));
}

absl::Status BackgroundSaver::Start(const SaveOptions& options,
                                    std::span<const CheckpointTensor> tensors) {
  const Clock::time_point asked = Clock::now();
  RETURN_IF_ERROR(Finish());
  auto job = std::make_unique<Job>();
  job->options = options;
  job->options.progress = &job->progress;
  absl::StatusOr<std::vector<HostPiece>> pieces = PiecesToWrite(tensors);
  absl::Status status = pieces.status();
  if (status.ok()) {
    job->pieces = *std::move(pieces);
    status = Try([&] { job->memory = Snapshot(job->pieces); });
  }
  RETURN_IF_ERROR(communicator_->AgreeOnStatus(status, "copy checkpoint"));
  job->start = Clock::now();
  job->report.step = options.state.step;
  job->report.stopped_seconds = SecondsSince(asked);
  // Where a rank has no thread to spare, nobody begins to write.
  std::promise<bool> go;
  status = Try([&] {
    job->thread = std::thread([job = job.get(), start = go.get_future().share(),
                               communicator = communicator_.get()] {
      if (start.get()) job->Run(*communicator);
    });
  });
  status = communicator_->AgreeOnStatus(status, "start a thread for saving");
  go.set_value(status.ok());
  if (status.ok()) {
    job_ = std::move(job);
  } else if (job->thread.joinable()) {
    job->thread.join();
  }
  return status;
}

absl::Status BackgroundSaver::Finish() {
  if (job_ == nullptr) return absl::OkStatus();
  job_->thread.join();
  const std::unique_ptr<Job> job = std::move(job_);
  if (job->path.ok()) report_ = job->report;
  return job->path.status();
}

std::optional<SaveReport> BackgroundSaver::TakeReport() {
  // An error waits for the next call that all ranks make.
  if (job_ != nullptr && job_->done && job_->path.ok()) (void)Finish();
  return std::exchange(report_, std::nullopt);
}

std::optional<std::string> BackgroundSaver::ProgressLine() const {
  if (job_ == nullptr || job_->done) return std::nullopt;
  const int64_t written = job_->progress.bytes_written;
  const int64_t all = std::max<int64_t>(job_->progress.num_bytes, 1);
  return absl::StrFormat("saving step %d: %d%%, %.0f MB/s", job_->report.step,
                         100 * written / all,
                         Rate(written, SecondsSince(job_->start)));
}

}  // namespace tessera
