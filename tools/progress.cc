#include "tools/progress.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {
namespace {

std::string ShortCount(double n) {
  if (n < 1e3) return absl::StrFormat("%.0f", n);
  if (n < 1e6) return absl::StrFormat("%.1fk", n / 1e3);
  return absl::StrFormat("%.1fM", n / 1e6);
}

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
}

}  // namespace

std::string ProgressLine(const StepMetrics& m) {
  std::string line = absl::StrFormat(
      "step %d/%d  loss %.4f  lr %.2e  norm %.3f  %s tok/s  %.0f%% of peak  "
      "%d MiB  %s left",
      m.step, m.num_steps, m.loss, m.learning_rate, m.grad_norm,
      ShortCount(m.tokens_per_second), 100 * m.flops_share,
      m.memory_bytes >> 20, Duration(m.seconds_left));
  if (m.loss_scale.has_value()) {
    absl::StrAppendFormat(&line, "  scale %g", *m.loss_scale);
  }
  if (!m.skipped.empty()) absl::StrAppend(&line, "  skipped: ", m.skipped);
  if (m.validation_loss.has_value()) {
    absl::StrAppendFormat(&line, "  validation %.4f", *m.validation_loss);
  }
  return line;
}

std::string MetricsJson(const StepMetrics& m) {
  nlohmann::ordered_json json = {{"step", m.step},
                                 {"loss", m.loss},
                                 {"learning_rate", m.learning_rate},
                                 {"grad_norm", m.grad_norm},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"flops_share", m.flops_share},
                                 {"memory_bytes", m.memory_bytes},
                                 {"seconds_left", m.seconds_left}};
  if (m.loss_scale.has_value()) json["loss_scale"] = *m.loss_scale;
  if (!m.skipped.empty()) json["skipped"] = m.skipped;
  if (m.validation_loss.has_value()) {
    json["validation_loss"] = *m.validation_loss;
  }
  return json.dump();
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path) {
  std::ofstream file(path, std::ios::app);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  return MetricsFile(path, std::move(file));
}

absl::Status MetricsFile::Append(const std::string& line) {
  file_ << line << "\n" << std::flush;
  if (file_) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("write ", path_));
}

}  // namespace tessera
