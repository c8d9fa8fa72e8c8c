// Affine maps, in the two layouts of weights that models are saved in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/functions/matmul.h"
#include "runtime/nn/low_rank.h"
#include "runtime/nn/module.h"

namespace tessera {

struct LinearOptions {
  bool bias = true;
  // Start values: the weight normal with this deviation and the bias 0, or,
  // when unset, both uniform within 1 / sqrt(in_features).
  std::optional<double> init_stddev = {};
};

// What both have: a weight, perhaps a bias, perhaps a term of low rank.
class AffineLayer : public Module {
 public:
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  const Variable& weight() const { return weight_; }
  functions::WeightLayout layout() const { return layout_; }

  // From now on the output has a term of low rank beside it, whose modules are
  // children of this one. `name` is this layer's in its model. Throws when
  // there is one, or the rank is not positive.
  void AddLowRank(const LowRankOptions& options, const std::string& name);
  // Null without.
  const LowRankTerm* low_rank() const { return low_rank_.get(); }
  // Adds the term, in float32 at least, to the weight, in place, and is then
  // without it; its parameters stay, unused.
  void MergeLowRank();

 protected:
  AffineLayer(std::string class_name, int64_t in_features, int64_t out_features,
              functions::WeightLayout layout)
      : Module(std::move(class_name)),
        in_features_(in_features),
        out_features_(out_features),
        layout_(layout) {}
  Variable Apply(const Variable& x);

  const int64_t in_features_;
  const int64_t out_features_;
  const functions::WeightLayout layout_;
  Variable weight_;
  Variable bias_;  // Undefined without one.

 private:
  std::unique_ptr<const LowRankTerm> low_rank_;
};

// y = x weight^T + bias; "weight" [out, in], "bias" [out].
class Linear : public AffineLayer {
 public:
  Linear(int64_t in_features, int64_t out_features,
         const LinearOptions& options = {});
  // With the weight of another module, [out, in], which ties them. No bias.
  explicit Linear(const Variable& weight);

  // x [..., in]: [..., out].
  Variable operator()(const Variable& x);
  void ResetParameters(const Initializer& initializer) override;

 private:
  const LinearOptions options_;
  const bool tied_ = false;
};

// y = x weight + bias; "weight" [in, out], "bias" [out]: GPT-2's layout.
class Conv1D : public AffineLayer {
 public:
  // The weight starts normal with deviation `init_stddev`, the bias at 0.
  Conv1D(int64_t in_features, int64_t out_features, double init_stddev);

  // x [..., in]: [..., out].
  Variable operator()(const Variable& x);
  void ResetParameters(const Initializer& initializer) override;

 private:
  const double init_stddev_;
};

}  // namespace tessera
