// Where this thread is in a training run, as far as random numbers depend on
// it: dropout's masks are a function of it, and recomputation restores it.
#pragma once

#include <cstdint>
#include <map>

namespace tessera {

struct RandomContext {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;
  // Row b of this rank's batch is sample first_sample + b * sample_stride of
  // the global batch: masks differ between ranks and do not depend on how many
  // ranks share the batch.
  int64_t first_sample = 0;
  int64_t sample_stride = 1;
  // How often each module has drawn in this forward, by the module's key.
  std::map<uint64_t, int64_t> calls = {};
};

// A copy, to be restored by a guard.
RandomContext CurrentRandomContext();

// This thread's context for a scope. Calls counted inside are forgotten after.
class RandomContextGuard {
 public:
  explicit RandomContextGuard(RandomContext context);
  ~RandomContextGuard();
  RandomContextGuard(const RandomContextGuard&) = delete;
  RandomContextGuard& operator=(const RandomContextGuard&) = delete;

 private:
  RandomContext previous_;
};

// How often `module_key` has drawn before in this context; counts this one.
int64_t CountRandomCall(uint64_t module_key);

}  // namespace tessera
