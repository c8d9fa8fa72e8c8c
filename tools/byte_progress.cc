#include "tools/byte_progress.h"

#include <cstdio>

namespace tessera {

void ByteProgress::Show(int64_t done, int64_t total) {
  const Clock::time_point now = Clock::now();
  if (now - shown_ < std::chrono::seconds(1)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double megabytes = static_cast<double>(done) / 1e6;
  std::fprintf(stderr, "%s %.0f of %.0f MB, %.0f MB/s\n", verb_.c_str(),
               megabytes, static_cast<double>(total) / 1e6,
               megabytes / seconds);
}

}  // namespace tessera
