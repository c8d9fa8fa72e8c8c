// SIGINT, SIGTERM and SIGHUP as a question that a loop asks.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace tessera {

// While it lives, the first of these signals only makes requested() true; the
// second ends the process at once. SIGHUP is left alone where it is ignored, as
// under nohup. Made before other threads, which inherit that the signals are
// blocked.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // While it is set, the first signal ends the process too: nothing can be
  // saved yet, and nobody asks.
  void set_ends_at_once(bool ends_at_once) { ends_at_once_ = ends_at_once; }
  bool requested() const { return requested_; }

 private:
  void Wait();

  sigset_t signals_;
  std::atomic<bool> ends_at_once_ = false;
  std::atomic<bool> requested_ = false;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace tessera
