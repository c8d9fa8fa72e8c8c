// Where programs keep what they make: texts, tokens, runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// $XDG_CACHE_HOME/tessera, or ~/.cache/tessera.
std::string CacheFolder();

// A name for a new run in `cache_folder`/runs, by the time of day.
std::string NewRunFolder(const std::string& cache_folder);
// The run in `cache_folder`/runs that was finished last.
absl::StatusOr<std::string> NewestRun(const std::string& cache_folder);

// Relative paths are those of whoever called `bazel run` or tools/run.
absl::Status EnterCallersFolder();

}  // namespace tessera
