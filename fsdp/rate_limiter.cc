#include "fsdp/rate_limiter.h"

namespace tessera {

void RateLimiter::WaitBeforeGather(int64_t num_ahead, Stream& stream) {
  // Releases that have passed cost nothing.
  while (!releases_.empty() && releases_.front().Done()) releases_.pop_front();
  while (!releases_.empty() &&
         num_ahead + static_cast<int64_t>(releases_.size()) > 1) {
    stream.WaitFor(releases_.front());
    releases_.pop_front();
  }
}

}  // namespace tessera
