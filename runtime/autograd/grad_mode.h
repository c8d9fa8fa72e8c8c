// Whether ops of this thread are recorded.
#pragma once

namespace tessera {

bool GradEnabled();

class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled);
  ~GradModeGuard();
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};

// Ops in this scope are not recorded: no history, no gradient.
class NoGrad : public GradModeGuard {
 public:
  NoGrad() : GradModeGuard(false) {}
};

}  // namespace tessera
