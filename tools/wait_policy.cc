#include "tools/wait_policy.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tessera {
namespace {

constexpr char kPolicy[] = "OMP_WAIT_POLICY";
constexpr char kSpins[] = "GOMP_SPINCOUNT";
// Rounds of about 10 ns. From 1000 on a token of SmolLM2 by two threads takes
// the same time; 10000 make two ranks of two threads each on two cores half as
// slow again.
constexpr char kBriefly[] = "2000";

}  // namespace

void SpinBrieflyWhileWaiting(char** argv) {
  if (std::getenv(kPolicy) != nullptr || std::getenv(kSpins) != nullptr) return;
  setenv(kSpins, kBriefly, /*overwrite=*/1);
  execv("/proc/self/exe", argv);
  // It could not be started again: it is slower, and does the same.
}

void LetStartedProgramsSleepWhileWaiting() {
  const char* spins = std::getenv(kSpins);
  if (spins == nullptr || std::string(spins) != kBriefly) return;
  unsetenv(kSpins);
  setenv(kPolicy, "passive", /*overwrite=*/1);
}

}  // namespace tessera
