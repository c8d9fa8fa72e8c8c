// What a run says of itself: a line for people, one of JSON for programs.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

struct StepMetrics {
  int64_t step = 0;  // Counted from 1.
  int64_t num_steps = 0;
  double loss = 0;  // Nats a token, over the global batch.
  double learning_rate = 0;
  double grad_norm = 0;
  double tokens_per_second = 0;
  double flops_share = 0;    // Of what the cores can do.
  int64_t memory_bytes = 0;  // The peak of a rank's allocator.
  double seconds_left = 0;
  std::optional<double> validation_loss;
  std::optional<double> loss_scale;  // Of float16.
  std::string skipped;               // Why the model stayed as it was.
};

// "step 120/300  loss 1.8342  lr 1.9e-03  norm 0.412  11.2k tok/s  63% of peak
// 214 MiB  2m05s left".
std::string ProgressLine(const StepMetrics& metrics);
// One object, with the names of the fields.
std::string MetricsJson(const StepMetrics& metrics);

// Appends lines to a file, and flushes each.
class MetricsFile {
 public:
  static absl::StatusOr<MetricsFile> Open(const std::string& path);
  absl::Status Append(const std::string& line);

 private:
  MetricsFile(std::string path, std::ofstream file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  std::ofstream file_;
};

}  // namespace tessera
