#include "tools/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

namespace tessera {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Wait(); });
}

StopSignal::~StopSignal() {
  ending_ = true;
  thread_.join();
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void StopSignal::Wait() {
  const sigset_t signals = StopSignals();
  const timespec patience = {0, 50'000'000};
  while (!ending_) {
    const int signal = sigtimedwait(&signals, nullptr, &patience);
    if (signal < 0) continue;
    if (requested_.exchange(true)) _exit(128 + signal);
  }
}

}  // namespace tessera
