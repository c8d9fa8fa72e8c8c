#include "runtime/nn/low_rank.h"

#include <cmath>

#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/matmul.h"

namespace tessera {

LowRankProjection::LowRankProjection(int64_t in_features, int64_t out_features,
                                     LowRankStart start)
    : Module("LowRankProjection"), in_features_(in_features), start_(start) {
  weight_ = RegisterParameter("weight", {out_features, in_features});
}

Variable LowRankProjection::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        return functions::Linear(input, weight_, Variable());
      },
      x);
}

void LowRankProjection::ResetParameters(const Initializer& initializer) {
  if (start_ == LowRankStart::kZero) {
    initializer.Constant(weight_, 0.0);
    return;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(in_features_));
  initializer.Uniform(weight_, "weight", -bound, bound);
}

Tensor LowRankDelta(const Tensor& a, const Tensor& b, double scale,
                    DType dtype) {
  return ops::Scale(ops::MatMul(ops::Cast(b, dtype), ops::Cast(a, dtype)),
                    scale);
}

LowRankTerm::LowRankTerm(int64_t in_features, int64_t out_features,
                         const LowRankOptions& options,
                         const std::string& layer)
    : scale(options.scale),
      lora_a(std::make_shared<LowRankProjection>(in_features, options.rank,
                                                 LowRankStart::kUniform)),
      lora_b(std::make_shared<LowRankProjection>(options.rank, out_features,
                                                 LowRankStart::kZero)),
      dropout(std::make_shared<Dropout>(options.dropout,
                                        layer + ".lora_dropout")) {}

Variable LowRankTerm::AddTo(const Variable& y, const Variable& x) const {
  // Scaled where it is narrow.
  const Variable narrow = functions::Scale((*lora_a)((*dropout)(x)), scale);
  return functions::Add(y, (*lora_b)(narrow));
}

Tensor LowRankTerm::Delta(DType dtype) const {
  return LowRankDelta(lora_a->weight().data(), lora_b->weight().data(), scale,
                      dtype);
}

}  // namespace tessera
