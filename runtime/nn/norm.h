// Norms over the last dim.
#pragma once

#include <cstdint>

#include "runtime/nn/module.h"

namespace tessera {

// "weight" [size] starts at 1, "bias" [size] at 0.
class LayerNorm : public Module {
 public:
  LayerNorm(int64_t size, double eps);

  Variable operator()(const Variable& x);  // x [..., size].
  void ResetParameters(const Initializer& initializer) override;

 private:
  const double eps_;
  Variable weight_;
  Variable bias_;
};

// "weight" [size] starts at 1.
class RmsNorm : public Module {
 public:
  RmsNorm(int64_t size, double eps);

  Variable operator()(const Variable& x);  // x [..., size].
  void ResetParameters(const Initializer& initializer) override;

 private:
  const double eps_;
  Variable weight_;
};

}  // namespace tessera
