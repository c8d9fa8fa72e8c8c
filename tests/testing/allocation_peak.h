// How much memory code asks for at its peak.
#pragma once

#include <cstdint>

namespace tessera {

// Counts what operator new hands out and gets back, on all threads, from the
// making of this object on. One at a time.
class AllocationPeak {
 public:
  AllocationPeak();
  int64_t bytes() const;  // The largest sum so far, above that at the start.

 private:
  int64_t start_;
};

}  // namespace tessera
