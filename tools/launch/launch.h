// Starts the ranks of a job on this host, and ends them together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

struct LaunchOptions {
  int num_ranks = 1;
  // Program and arguments of every rank. ThisCommand gives this process's own.
  std::vector<std::string> command;
  // From a rank's failure until the others are killed.
  absl::Duration grace = absl::Seconds(10);
  // From a signal to this process until ranks are killed: they may save first.
  absl::Duration request_grace = absl::Minutes(10);
  // The last words of a rank are its errors from a line on that begins so;
  // empty: none are. Words that several ranks have are written once, with who
  // has them: those of the first at once, others when all have ended.
  std::string last_words = "";
  // Takes a line that a rank wrote; by default it is written to this process's
  // own output, errors and lines of ranks other than 0 after "[rank N] ".
  std::function<void(int rank, bool is_error, const std::string& line)> on_line;
};

struct LaunchResult {
  int exit_code = 0;  // Of the first rank that failed; 128 + signal.
  int first_failed_rank = -1;
  std::string error;  // What is known of it; empty when all went well.
};

// Starts options.num_ranks processes with RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, serves the store that they
// meet at, and blocks until all have ended. When one fails, or this process
// gets SIGINT, SIGTERM or (unless it is ignored) SIGHUP, the others get SIGTERM
// (or that signal), and SIGKILL after `grace` (`request_grace`). When this
// process is killed, so are the ranks. To be called by the main thread.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options);

// Whether this process is a rank that a launcher started.
bool IsLaunchedRank();

// This process's program and arguments.
std::vector<std::string> ThisCommand(int argc, char** argv);

}  // namespace tessera
