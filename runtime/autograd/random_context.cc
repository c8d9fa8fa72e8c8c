#include "runtime/autograd/random_context.h"

#include <utility>

namespace tessera {
namespace {

RandomContext& Current() {
  thread_local RandomContext context;
  return context;
}

}  // namespace

RandomContext CurrentRandomContext() { return Current(); }

RandomContextGuard::RandomContextGuard(RandomContext context)
    : previous_(std::exchange(Current(), std::move(context))) {}

RandomContextGuard::~RandomContextGuard() { Current() = std::move(previous_); }

int64_t CountRandomCall(uint64_t module_key) {
  return Current().calls[module_key]++;
}

}  // namespace tessera
