// SIGINT and SIGTERM as a question that a loop asks.
#pragma once

#include <atomic>
#include <thread>

namespace tessera {

// While it lives, the first of these signals only makes requested() true; the
// second ends the process at once. Made before other threads, which inherit
// that the signals are blocked.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return requested_; }

 private:
  void Wait();

  std::atomic<bool> requested_ = false;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace tessera
