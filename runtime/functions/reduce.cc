#include "runtime/functions/reduce.h"

#include <utility>

#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/reduce.h"

namespace tessera::functions {
namespace {

// The gradient of a sum is its own gradient everywhere, times `factor`.
class SumNode final : public Node {
 public:
  // `kept` is the result's shape with the reduced dims at size 1.
  SumNode(const char* name, Shape from, Shape kept, double factor)
      : name_(name),
        from_(std::move(from)),
        kept_(std::move(kept)),
        factor_(factor) {}

  const char* name() const override { return name_; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor grad = factor_ == 1 ? ops::Contiguous(grads[0])
                                     : ops::Scale(grads[0], factor_);
    return {grad.Reshape(kept_).Expand(from_)};
  }

 private:
  const char* const name_;
  const Shape from_;
  const Shape kept_;
  const double factor_;
};

Variable ReduceAll(const char* name, const Variable& x, Tensor result,
                   double factor) {
  return Record(std::move(result), {x}, [&] {
    Shape ones;
    for (int d = 0; d < x.num_dims(); ++d) ones.Append(1);
    return std::make_shared<SumNode>(name, x.shape(), ones, factor);
  });
}

Variable ReduceDim(const char* name, const Variable& x, Tensor result, int dim,
                   double factor) {
  return Record(std::move(result), {x}, [&] {
    Shape kept = x.shape();
    kept.set_dim(x.shape().NormalizeDim(dim), 1);
    return std::make_shared<SumNode>(name, x.shape(), kept, factor);
  });
}

double Reciprocal(int64_t n) { return 1.0 / static_cast<double>(n); }

}  // namespace

Variable Sum(const Variable& x) {
  return ReduceAll("Sum", x, ops::Sum(x.data()), 1);
}
Variable Mean(const Variable& x) {
  return ReduceAll("Mean", x, ops::Mean(x.data()),
                   Reciprocal(x.shape().num_elements()));
}
Variable Sum(const Variable& x, int dim, bool keep_dim) {
  return ReduceDim("Sum", x, ops::Sum(x.data(), dim, keep_dim), dim, 1);
}
Variable Mean(const Variable& x, int dim, bool keep_dim) {
  return ReduceDim("Mean", x, ops::Mean(x.data(), dim, keep_dim), dim,
                   Reciprocal(x.size(dim)));
}

}  // namespace tessera::functions
