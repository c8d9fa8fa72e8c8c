// How far a long read or write is, on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace tessera {

// A line a second at most, and none for what takes less than one.
class ByteProgress {
 public:
  explicit ByteProgress(std::string verb) : verb_(std::move(verb)) {}

  // "merged 1234 of 5000 MB, 420 MB/s".
  void Show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string verb_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

}  // namespace tessera
