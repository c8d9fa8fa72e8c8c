#include "tools/stop_signal.h"

#include <unistd.h>

#include <ctime>

namespace tessera {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

StopSignal::StopSignal() : signals_(StopSignals()) {
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { Wait(); });
}

StopSignal::~StopSignal() {
  ending_ = true;
  thread_.join();
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
}

void StopSignal::Wait() {
  const timespec patience = {0, 50'000'000};
  while (!ending_) {
    const int signal = sigtimedwait(&signals_, nullptr, &patience);
    if (signal < 0) continue;
    if (requested_.exchange(true) || ends_at_once_) _exit(128 + signal);
  }
}

}  // namespace tessera
