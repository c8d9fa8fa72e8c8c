// How soon a thread runs when it is woken on a busy core.
#pragma once

#include <cstdint>

namespace tessera {

// Asks the scheduler for short time slices for this thread, and for threads
// that it starts from now on: one that wakes then interrupts a computing thread
// at once, where it would have waited milliseconds for the end of that one's
// slice. For threads that mostly wait. Linux from 6.12 on; elsewhere nothing
// changes. Returns whether it was granted.
bool AskForShortSlice();

// Of this thread, in nanoseconds; 0 where the kernel does not say.
int64_t TimeSlice();

}  // namespace tessera
