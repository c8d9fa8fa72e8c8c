#include "tools/program.h"

#include <cstdio>

#include "kernels/status.h"

namespace tessera {

int ExitCodeOf(const char* name, const std::function<absl::Status()>& body) {
  absl::Status status;
  const absl::Status thrown = Try([&] { status = body(); });
  if (!thrown.ok()) status = thrown;
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.ToString().c_str());
  return 1;
}

}  // namespace tessera
