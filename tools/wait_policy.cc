#include "tools/wait_policy.h"

#include <unistd.h>

#include <cstdlib>

namespace tessera {

void SleepWhileWaiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/1);
  execv("/proc/self/exe", argv);
  // It could not be started again: it is slower, and does the same.
}

}  // namespace tessera
