// Affine maps, in the two layouts of weights that models are saved in.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/nn/module.h"

namespace tessera {

struct LinearOptions {
  bool bias = true;
  // Start values: the weight normal with this deviation and the bias 0, or,
  // when unset, both uniform within 1 / sqrt(in_features).
  std::optional<double> init_stddev = {};
};

// y = x weight^T + bias; "weight" [out, in], "bias" [out].
class Linear : public Module {
 public:
  Linear(int64_t in_features, int64_t out_features,
         const LinearOptions& options = {});
  // With the weight of another module, [out, in], which ties them. No bias.
  explicit Linear(const Variable& weight);

  // x [..., in]: [..., out].
  Variable operator()(const Variable& x);
  void ResetParameters(const Initializer& initializer) override;

  const Variable& weight() const { return weight_; }

 private:
  const LinearOptions options_;
  const int64_t in_features_;
  const bool tied_ = false;
  Variable weight_;
  Variable bias_;  // Undefined without one.
};

// y = x weight + bias; "weight" [in, out], "bias" [out]: GPT-2's layout.
class Conv1D : public Module {
 public:
  // The weight starts normal with deviation `init_stddev`, the bias at 0.
  Conv1D(int64_t in_features, int64_t out_features, double init_stddev);

  // x [..., in]: [..., out].
  Variable operator()(const Variable& x);
  void ResetParameters(const Initializer& initializer) override;

 private:
  const double init_stddev_;
  Variable weight_;
  Variable bias_;
};

}  // namespace tessera
