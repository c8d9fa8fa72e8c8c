#include "runtime/autograd/grad_mode.h"

namespace tessera {
namespace {
thread_local bool grad_enabled = true;
}  // namespace

bool GradEnabled() { return grad_enabled; }

GradModeGuard::GradModeGuard(bool enabled) : previous_(grad_enabled) {
  grad_enabled = enabled;
}
GradModeGuard::~GradModeGuard() { grad_enabled = previous_; }

}  // namespace tessera
