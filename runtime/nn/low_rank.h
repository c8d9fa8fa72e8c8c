// A trainable term of low rank beside a layer whose own weight stays as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/nn/dropout.h"
#include "runtime/nn/module.h"

namespace tessera {

enum class LowRankStart { kUniform, kZero };

// y = x weight^T; "weight" [out, in] starts uniform within 1 / sqrt(in) (what
// others call Kaiming uniform with a = sqrt(5)), or at 0.
class LowRankProjection : public Module {
 public:
  LowRankProjection(int64_t in_features, int64_t out_features,
                    LowRankStart start);

  // x [..., in]: [..., out].
  Variable operator()(const Variable& x);
  void ResetParameters(const Initializer& initializer) override;

  const Variable& weight() const { return weight_; }

 private:
  const int64_t in_features_;
  const LowRankStart start_;
  Variable weight_;
};

// scale * b a as a matrix [out, in] of type `dtype`, in which it is multiplied:
// what an adapter adds to a weight. a [rank, in], b [out, rank].
Tensor LowRankDelta(const Tensor& a, const Tensor& b, double scale,
                    DType dtype);

struct LowRankOptions {
  int64_t rank = 8;
  double scale = 1;
  double dropout = 0;  // Of the term's input.
};

// scale * lora_B(lora_A(dropout(x))). Its modules are children of the layer
// under these names, which are those of the files that adapters come in. Since
// lora_B starts at zero, so does the term.
struct LowRankTerm {
  // `layer` is the full name of the layer in its model.
  LowRankTerm(int64_t in_features, int64_t out_features,
              const LowRankOptions& options, const std::string& layer);

  // y + the term of x.
  Variable AddTo(const Variable& y, const Variable& x) const;
  // LowRankDelta of the term.
  Tensor Delta(DType dtype) const;

  const double scale;
  const std::shared_ptr<LowRankProjection> lora_a;
  const std::shared_ptr<LowRankProjection> lora_b;
  const std::shared_ptr<Dropout> dropout;
};

}  // namespace tessera
