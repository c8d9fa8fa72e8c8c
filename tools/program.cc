#include "tools/program.h"

#include <csignal>
#include <cstdio>

#include "kernels/status.h"

namespace tessera {

int ExitCodeOf(const char* name, const std::function<absl::Status()>& body) {
  std::signal(SIGXFSZ, SIG_IGN);  // A file at its limit is an error.
  absl::Status status;
  const absl::Status thrown = Try([&] { status = body(); });
  if (!thrown.ok()) status = thrown;
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.ToString().c_str());
  return 1;
}

}  // namespace tessera
