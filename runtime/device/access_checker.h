// Happens-before checking of what streams read and write.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/stream.h"

namespace tessera {

// A point in the partial order of all streams' work: for each stream, how many
// of its pieces of work are known to be done.
using VectorClock = std::vector<uint64_t>;

// Judges each piece of work when it is queued, from the events that order it,
// and so does not depend on timing: two accesses to the same bytes, at least
// one of them a write, that no chain of events orders, are a race. Thread
// sanitizers see such a race only when it happens, and not inside libraries.
//
// Off by default; for tests. Thread-safe.
class AccessChecker {
 public:
  // Starts afresh, or stops.
  static void Enable(bool enabled);
  static bool enabled();
  // The races found since Enable(true), as text that names both operations.
  static std::vector<std::string> TakeReports();

  // For Stream. Clock ids are dense. An inline stream is its caller.
  static int NewClock(const std::string& name, Device device);
  static void OnWork(int clock, const char* operation,
                     const AccessList& access);
  static VectorClock OnRecord(int clock);
  static void OnWait(int clock, const VectorClock& event);
  // The calling thread has waited for an event, or for all of a stream: what it
  // queues from now on, on any stream, comes later.
  static void OnHostWait(const VectorClock& event);
  // The stream is gone, and so is all its work.
  static void OnEnd(int clock);
};

}  // namespace tessera
