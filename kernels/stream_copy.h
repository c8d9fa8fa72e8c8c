// Copies past the caches.
#pragma once

#include <cstdint>

namespace tessera {

// Copies bytes that nobody is going to read soon, as those of a loaded model or
// of a snapshot: what is written does not first pass from memory to the caches,
// nor push out what they hold, which makes large copies by a third faster. The
// two ranges may not overlap. Small copies are plain ones. The values are seen
// by other threads as those of a memcpy are.
void StreamCopy(void* to, const void* from, int64_t num_bytes);

}  // namespace tessera
