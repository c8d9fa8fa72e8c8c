#include "runtime/ops/elementwise.h"

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

[[noreturn]] void Refuse(const char* operation, const std::string& problem) {
  throw Error(
      absl::InvalidArgumentError(absl::StrCat(operation, ": ", problem)));
}

void CheckSameDType(const char* operation, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return;
  Refuse(operation, absl::StrCat("wants one dtype, got ", a.ToString(), " and ",
                                 b.ToString(), "; cast one of them"));
}

void CheckSameShape(const char* operation, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) return;
  Refuse(operation, absl::StrCat("wants one shape, got ", a.ToString(), " and ",
                                 b.ToString()));
}

void CheckNumbers(const char* operation, const Tensor& x) {
  if (x.dtype() != DType::kBool) return;
  Refuse(operation,
         absl::StrCat("wants numbers, got ", x.ToString(), "; cast it first"));
}

void CheckFloating(const char* operation, const Tensor& x) {
  if (IsFloating(x.dtype())) return;
  Refuse(operation, absl::StrCat("wants a floating dtype, got ", x.ToString(),
                                 "; cast it first"));
}

Tensor EmptyLike(const Tensor& x) {
  return Tensor::Empty(x.shape(), {x.dtype(), x.device()});
}

// `x` as a view of `shape`; names `operation` when that cannot be.
Tensor Broadcast(const char* operation, const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (BroadcastShapes(operation, x.shape(), shape) != shape) {
    Refuse(operation, absl::StrCat(x.ToString(), " does not broadcast to ",
                                   shape.ToString()));
  }
  return x.Expand(shape);
}

Tensor Binary(const char* operation, BinaryOp op, const Tensor& a,
              const Tensor& b) {
  CommonDevice(operation, {&a, &b});
  CheckSameDType(operation, a, b);
  CheckNumbers(operation, a);
  const Shape shape = BroadcastShapes(operation, a.shape(), b.shape());
  const Tensor wide_a = Broadcast(operation, a, shape);
  const Tensor wide_b = Broadcast(operation, b, shape);
  Tensor y = Tensor::Empty(shape, {a.dtype(), a.device()});
  Run(kBinary, {op, ViewOf(wide_a), ViewOf(wide_b), ViewOf(y)}, {&a, &b}, {&y});
  return y;
}

}  // namespace

void Copy(const Tensor& src, const Tensor& dst) {
  CheckSameShape("Copy", src, dst);
  CommonDevice("Copy", {&src, &dst});
  Run(kCopy, {ViewOf(src), ViewOf(dst)}, {&src}, {&dst});
}

Tensor Contiguous(const Tensor& x) { return x.IsContiguous() ? x : Clone(x); }

Tensor Clone(const Tensor& x) {
  Tensor y = EmptyLike(x);
  Copy(x, y);
  return y;
}

Tensor Cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::Empty(x.shape(), {dtype, x.device()});
  Copy(x, y);
  return y;
}

void Fill(const Tensor& x, double value) {
  Run(kFill, {ViewOf(x), value}, {}, {&x});
}

Tensor Full(const Shape& shape, double value, const TensorOptions& options) {
  Tensor x = Tensor::Empty(shape, options);
  Fill(x, value);
  return x;
}

Tensor Zeros(const Shape& shape, const TensorOptions& options) {
  return Full(shape, 0, options);
}

Tensor Ones(const Shape& shape, const TensorOptions& options) {
  return Full(shape, 1, options);
}

Tensor ZerosLike(const Tensor& x) {
  return Full(x.shape(), 0, {x.dtype(), x.device()});
}

Tensor Arange(int64_t n, const TensorOptions& options) {
  if (options.device.is_meta()) return Tensor::Empty({n}, options);
  std::vector<int64_t> values(n);
  std::iota(values.begin(), values.end(), int64_t{0});
  return Cast(Tensor::FromVector(values, {n}, options.device), options.dtype);
}

Tensor Add(const Tensor& a, const Tensor& b) {
  return Binary("Add", BinaryOp::kAdd, a, b);
}
Tensor Sub(const Tensor& a, const Tensor& b) {
  return Binary("Sub", BinaryOp::kSub, a, b);
}
Tensor Mul(const Tensor& a, const Tensor& b) {
  return Binary("Mul", BinaryOp::kMul, a, b);
}
Tensor Div(const Tensor& a, const Tensor& b) {
  return Binary("Div", BinaryOp::kDiv, a, b);
}

void AddInto(const Tensor& dst, const Tensor& src, double alpha) {
  CommonDevice("AddInto", {&dst, &src});
  const Tensor wide = Broadcast("AddInto", src, dst.shape());
  Run(kAccumulate, {ViewOf(wide), ViewOf(dst), alpha}, {&src, &dst}, {&dst});
}

void MulInto(const Tensor& dst, const Tensor& src) {
  CommonDevice("MulInto", {&dst, &src});
  CheckSameDType("MulInto", dst, src);
  CheckNumbers("MulInto", dst);
  const Tensor wide = Broadcast("MulInto", src, dst.shape());
  Run(kBinary, {BinaryOp::kMul, ViewOf(dst), ViewOf(wide), ViewOf(dst)},
      {&src, &dst}, {&dst});
}

Tensor Affine(const Tensor& x, double factor, double offset) {
  CheckNumbers("Affine", x);
  Tensor y = EmptyLike(x);
  Run(kAffine, {ViewOf(x), ViewOf(y), factor, offset}, {&x}, {&y});
  return y;
}

Tensor Scale(const Tensor& x, double factor) { return Affine(x, factor, 0); }

Tensor AddScalar(const Tensor& x, double offset) {
  return Affine(x, 1, offset);
}

void ScaleInPlace(const Tensor& x, double factor) {
  CheckNumbers("ScaleInPlace", x);
  Run(kAffine, {ViewOf(x), ViewOf(x), factor, 0}, {&x}, {&x});
}

Tensor Unary(UnaryOp op, const Tensor& x) {
  CheckFloating("Unary", x);
  Tensor y = EmptyLike(x);
  Run(kUnary, {op, ViewOf(x), ViewOf(y)}, {&x}, {&y});
  return y;
}

Tensor UnaryBackward(UnaryOp op, const Tensor& x, const Tensor& dy) {
  CommonDevice("UnaryBackward", {&x, &dy});
  CheckFloating("UnaryBackward", x);
  CheckSameDType("UnaryBackward", x, dy);
  CheckSameShape("UnaryBackward", x, dy);
  Tensor dx = EmptyLike(x);
  Run(kUnaryBackward, {op, ViewOf(x), ViewOf(dy), ViewOf(dx)}, {&x, &dy},
      {&dx});
  return dx;
}

Tensor SwiGlu(const Tensor& gate, const Tensor& up) {
  CommonDevice("SwiGlu", {&gate, &up});
  CheckFloating("SwiGlu", gate);
  CheckSameDType("SwiGlu", gate, up);
  CheckSameShape("SwiGlu", gate, up);
  Tensor y = EmptyLike(gate);
  Run(kSwiGlu, {ViewOf(gate), ViewOf(up), ViewOf(y)}, {&gate, &up}, {&y});
  return y;
}

SwiGluGradients SwiGluBackward(const Tensor& gate, const Tensor& up,
                               const Tensor& dy, bool want_gate, bool want_up) {
  CommonDevice("SwiGluBackward", {&gate, &up, &dy});
  CheckSameDType("SwiGluBackward", gate, dy);
  CheckSameShape("SwiGluBackward", gate, dy);
  SwiGluGradients result;
  if (want_gate) result.gate = EmptyLike(gate);
  if (want_up) result.up = EmptyLike(up);
  if (!want_gate && !want_up) return result;
  Run(kSwiGluBackward,
      {ViewOf(gate), ViewOf(up), ViewOf(dy), ViewOf(result.gate),
       ViewOf(result.up)},
      {&gate, &up, &dy}, {&result.gate, &result.up});
  return result;
}

Tensor Where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  CommonDevice("Where", {&mask, &a, &b});
  CheckSameDType("Where", a, b);
  const Shape shape = BroadcastShapes(
      "Where", BroadcastShapes("Where", mask.shape(), a.shape()), b.shape());
  const Tensor wide_mask = Broadcast("Where", mask, shape);
  const Tensor wide_a = Broadcast("Where", a, shape);
  const Tensor wide_b = Broadcast("Where", b, shape);
  Tensor y = Tensor::Empty(shape, {a.dtype(), a.device()});
  Run(kWhere, {ViewOf(wide_mask), ViewOf(wide_a), ViewOf(wide_b), ViewOf(y)},
      {&mask, &a, &b}, {&y});
  return y;
}

Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value) {
  return Where(mask, Full({}, value, {x.dtype(), x.device()}), x);
}

}  // namespace tessera::ops
