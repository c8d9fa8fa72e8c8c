#include "runtime/ops/reduce.h"

#include "absl/strings/str_cat.h"
#include "kernels/reduce.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

void CheckNumbers(const char* operation, const Tensor& x) {
  if (x.dtype() != DType::kBool) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      operation, ": wants numbers, got ", x.ToString(), "; cast it first")));
}

struct Reduction {
  const char* operation;
  ReduceKind op = ReduceKind::kSum;
  double factor = 1;
};

// Into a tensor of `shape`, which has x's dims, some of them with size 1.
Tensor ReduceTo(const Reduction& reduction, const Tensor& x,
                const Shape& shape) {
  CheckNumbers(reduction.operation, x);
  Tensor y = Tensor::Empty(shape, {x.dtype(), x.device()});
  Run(kReduce,
      {.op = reduction.op,
       .x = ViewOf(x),
       .y = ViewOf(y),
       .factor = reduction.factor},
      {&x}, {&y});
  return y;
}

Tensor ReduceAll(const Reduction& reduction, const Tensor& x) {
  Shape ones;
  for (int d = 0; d < x.num_dims(); ++d) ones.Append(1);
  return ReduceTo(reduction, x, ones).Reshape({});
}

Tensor ReduceDim(const Reduction& reduction, const Tensor& x, int dim,
                 bool keep_dim) {
  const int at = x.shape().NormalizeDim(dim);
  Shape shape = x.shape();
  shape.set_dim(at, 1);
  const Tensor y = ReduceTo(reduction, x, shape);
  return keep_dim ? y : y.Squeeze(at);
}

double Reciprocal(int64_t n) { return 1.0 / static_cast<double>(n); }

// `shape` with leading dims of size 1, so that it has `num_dims`.
Shape WithLeadingOnes(const Shape& shape, int num_dims) {
  Shape result;
  for (int d = shape.num_dims(); d < num_dims; ++d) result.Append(1);
  for (int64_t size : shape.sizes()) result.Append(size);
  return result;
}

void CheckBroadcasts(const char* operation, const Tensor& x,
                     const Shape& shape) {
  if (shape.num_dims() <= x.num_dims() &&
      BroadcastShapes(operation, shape, x.shape()) == x.shape()) {
    return;
  }
  throw Error(absl::InvalidArgumentError(
      absl::StrCat(operation, ": ", shape.ToString(), " does not broadcast to ",
                   x.ToString())));
}

void AddExactTerms(const char* operation, ExactTerm term, const Tensor& x,
                   const ExactSum& sum) {
  CommonDevice(operation, {&x, &sum.words});
  if (!IsFloating(x.dtype())) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        operation, ": wants a floating dtype, got ", x.ToString())));
  }
  const Tensor values = Contiguous(x);
  Run(kAddExact, {term, ViewOf(values), ViewOf(sum.words)},
      {&values, &sum.words}, {&sum.words});
}

Tensor RoundExact(const ExactSum& sum, bool square_root) {
  Tensor y = Tensor::Empty({}, {DType::kFloat64, sum.words.device()});
  Run(kExactToDouble, {ViewOf(sum.words), ViewOf(y), square_root}, {&sum.words},
      {&y});
  return y;
}

}  // namespace

Tensor Sum(const Tensor& x) { return ReduceAll({"Sum"}, x); }
Tensor Mean(const Tensor& x) {
  return ReduceAll({"Mean", ReduceKind::kSum, Reciprocal(x.num_elements())}, x);
}
Tensor Max(const Tensor& x) { return ReduceAll({"Max", ReduceKind::kMax}, x); }
Tensor MaxMagnitude(const Tensor& x) {
  return ReduceAll({"MaxMagnitude", ReduceKind::kMaxMagnitude}, x);
}

Tensor Sum(const Tensor& x, int dim, bool keep_dim) {
  return ReduceDim({"Sum"}, x, dim, keep_dim);
}
Tensor Mean(const Tensor& x, int dim, bool keep_dim) {
  return ReduceDim({"Mean", ReduceKind::kSum, Reciprocal(x.size(dim))}, x, dim,
                   keep_dim);
}
Tensor Max(const Tensor& x, int dim, bool keep_dim) {
  return ReduceDim({"Max", ReduceKind::kMax}, x, dim, keep_dim);
}

Tensor SumTo(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  CheckBroadcasts("SumTo", x, shape);
  return ReduceTo({"SumTo"}, x, WithLeadingOnes(shape, x.num_dims()))
      .Reshape(shape);
}

void SumInto(const Tensor& x, const Tensor& y, bool accumulate) {
  CommonDevice("SumInto", {&x, &y});
  CheckNumbers("SumInto", x);
  CheckBroadcasts("SumInto", x, y.shape());
  Tensor wide = y;
  while (wide.num_dims() < x.num_dims()) wide = wide.Unsqueeze(0);
  Run(kReduce, {.x = ViewOf(x), .y = ViewOf(wide), .accumulate = accumulate},
      {&x, &y}, {&y});
}

void ColumnSumsInto(const Tensor& x_NC, const Tensor& y_C, bool accumulate) {
  if (x_NC.num_dims() != 2 || y_C.num_dims() != 1 ||
      x_NC.size(1) != y_C.size(0)) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("ColumnSumsInto: wants [N, C] into [C], got ",
                     x_NC.ToString(), " into ", y_C.ToString())));
  }
  SumInto(x_NC, y_C, accumulate);
}

ExactSum NewExactSum(Device device) {
  return {Zeros({kExactWords}, {DType::kInt64, device})};
}

void AddSquares(const Tensor& x, const ExactSum& sum) {
  AddExactTerms("AddSquares", ExactTerm::kSquare, x, sum);
}
void AddMagnitudes(const Tensor& x, const ExactSum& sum) {
  AddExactTerms("AddMagnitudes", ExactTerm::kMagnitude, x, sum);
}

Tensor ExactValue(const ExactSum& sum) { return RoundExact(sum, false); }
Tensor ExactSquareRoot(const ExactSum& sum) { return RoundExact(sum, true); }
double ToDouble(const ExactSum& sum) { return ExactValue(sum).Item(); }

}  // namespace tessera::ops
