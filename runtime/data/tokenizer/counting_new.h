// What operator new of a test program hands out.
#pragma once

#include <cstddef>

namespace tessera {

// Bytes that are allocated now, from where the peak is counted.
size_t StartCountingPeak();
// The most that were allocated at once since then.
size_t PeakBytes();

}  // namespace tessera
