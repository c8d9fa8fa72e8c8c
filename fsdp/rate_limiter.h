// How far gathers may run ahead of the releases of what they gathered.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "runtime/device/stream.h"

namespace tessera {

// [Note: the rate limiter]
// At most two resharding units are gathered and not yet released, the current
// one included; units that enclose the current one and units that keep their
// parameters do not count. A prefetch that would be the third is not made. A
// gather behind which the host has run ahead waits, on its stream, until enough
// releases have passed; the host never blocks.
class RateLimiter {
 public:
  // A resharding unit's buffer is free once `free` has passed.
  void Release(Event free) { releases_.push_back(std::move(free)); }
  // Before a gather on `stream`, while `num_ahead` other units are gathered:
  // makes the stream wait for the oldest releases.
  void WaitBeforeGather(int64_t num_ahead, Stream& stream);
  void Clear() { releases_.clear(); }

 private:
  std::deque<Event> releases_;  // Oldest first.
};

}  // namespace tessera
