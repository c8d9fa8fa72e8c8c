#include "runtime/functions/elementwise.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/reduce.h"

namespace tessera::functions {
namespace {

// Sum and difference keep shapes only.
class SumNode final : public Node {
 public:
  SumNode(const char* name, const Variable& a, const Variable& b,
          double sign_of_b)
      : name_(name),
        shape_a_(a.shape()),
        shape_b_(b.shape()),
        sign_of_b_(sign_of_b) {}

  const char* name() const override { return name_; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    std::vector<Tensor> results(2);
    if (NeedsGrad(0)) results[0] = ops::SumTo(grads[0], shape_a_);
    if (NeedsGrad(1)) results[1] = ops::SumTo(grads[0], shape_b_);
    if (NeedsGrad(1) && sign_of_b_ < 0) {
      results[1] = ops::Scale(results[1], sign_of_b_);
    }
    return results;
  }

 private:
  const char* const name_;
  const Shape shape_a_;
  const Shape shape_b_;
  const double sign_of_b_;
};

class MulNode final : public Node {
 public:
  MulNode(const Variable& a, const Variable& b) : a_("Mul", a), b_("Mul", b) {}

  const char* name() const override { return "Mul"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor a = a_.Unpack();
    const Tensor b = b_.Unpack();
    std::vector<Tensor> results(2);
    if (NeedsGrad(0)) {
      results[0] = ops::SumTo(ops::Mul(grads[0], b), a.shape());
    }
    if (NeedsGrad(1)) {
      results[1] = ops::SumTo(ops::Mul(grads[0], a), b.shape());
    }
    return results;
  }
  void ReleaseSaved() override {
    a_.Free();
    b_.Free();
  }

 private:
  SavedTensor a_;
  SavedTensor b_;
};

class DivNode final : public Node {
 public:
  DivNode(const Variable& a, const Variable& b) : a_("Div", a), b_("Div", b) {}

  const char* name() const override { return "Div"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor a = a_.Unpack();
    const Tensor b = b_.Unpack();
    const Tensor quotient = ops::Div(grads[0], b);
    std::vector<Tensor> results(2);
    if (NeedsGrad(0)) results[0] = ops::SumTo(quotient, a.shape());
    if (NeedsGrad(1)) {
      // d(a/b)/db = -(1/b) (a/b)
      const Tensor product = ops::Mul(quotient, ops::Div(a, b));
      results[1] = ops::Scale(ops::SumTo(product, b.shape()), -1);
    }
    return results;
  }
  void ReleaseSaved() override {
    a_.Free();
    b_.Free();
  }

 private:
  SavedTensor a_;
  SavedTensor b_;
};

class ScaleNode final : public Node {
 public:
  ScaleNode(const char* name, double factor) : name_(name), factor_(factor) {}

  const char* name() const override { return name_; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {factor_ == 1 ? grads[0] : ops::Scale(grads[0], factor_)};
  }

 private:
  const char* const name_;
  const double factor_;
};

class UnaryNode final : public Node {
 public:
  UnaryNode(const char* name, UnaryOp op, const Variable& x)
      : name_(name), op_(op), x_(name, x) {}

  const char* name() const override { return name_; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {ops::UnaryBackward(op_, x_.Unpack(), grads[0])};
  }
  void ReleaseSaved() override { x_.Free(); }

 private:
  const char* const name_;
  const UnaryOp op_;
  SavedTensor x_;
};

class SwiGluNode final : public Node {
 public:
  SwiGluNode(const Variable& gate, const Variable& up)
      : gate_("SwiGlu", gate), up_("SwiGlu", up) {}

  const char* name() const override { return "SwiGlu"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const ops::SwiGluGradients d = ops::SwiGluBackward(
        gate_.Unpack(), up_.Unpack(), grads[0], NeedsGrad(0), NeedsGrad(1));
    return {d.gate, d.up};
  }
  void ReleaseSaved() override {
    gate_.Free();
    up_.Free();
  }

 private:
  SavedTensor gate_;
  SavedTensor up_;
};

class CastNode final : public Node {
 public:
  explicit CastNode(DType from) : from_(from) {}

  const char* name() const override { return "Cast"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {ops::Cast(grads[0], from_)};
  }

 private:
  const DType from_;
};

class MaskedFillNode final : public Node {
 public:
  explicit MaskedFillNode(const Tensor& mask) : mask_("MaskedFill", mask) {}

  const char* name() const override { return "MaskedFill"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {ops::MaskedFill(grads[0], mask_.Unpack(), 0)};
  }
  void ReleaseSaved() override { mask_.Free(); }

 private:
  SavedTensor mask_;
};

Variable Unary(const char* name, UnaryOp op, const Variable& x) {
  return Record(ops::Unary(op, x.data()), {x},
                [&] { return std::make_shared<UnaryNode>(name, op, x); });
}

}  // namespace

Variable Add(const Variable& a, const Variable& b) {
  return Record(ops::Add(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<SumNode>("Add", a, b, 1); });
}

Variable Sub(const Variable& a, const Variable& b) {
  return Record(ops::Sub(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<SumNode>("Sub", a, b, -1); });
}

Variable Mul(const Variable& a, const Variable& b) {
  return Record(ops::Mul(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<MulNode>(a, b); });
}

Variable Div(const Variable& a, const Variable& b) {
  return Record(ops::Div(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<DivNode>(a, b); });
}

Variable Scale(const Variable& x, double factor) {
  return Record(ops::Scale(x.data(), factor), {x},
                [&] { return std::make_shared<ScaleNode>("Scale", factor); });
}

Variable AddScalar(const Variable& x, double offset) {
  return Record(ops::AddScalar(x.data(), offset), {x},
                [&] { return std::make_shared<ScaleNode>("AddScalar", 1); });
}

Variable Gelu(const Variable& x, GeluKind kind) {
  return Unary("Gelu",
               kind == GeluKind::kTanh ? UnaryOp::kGeluTanh : UnaryOp::kGeluErf,
               x);
}
Variable Silu(const Variable& x) { return Unary("Silu", UnaryOp::kSilu, x); }
Variable Relu(const Variable& x) { return Unary("Relu", UnaryOp::kRelu, x); }
Variable Square(const Variable& x) {
  return Unary("Square", UnaryOp::kSquare, x);
}
Variable Sqrt(const Variable& x) { return Unary("Sqrt", UnaryOp::kSqrt, x); }
Variable Exp(const Variable& x) { return Unary("Exp", UnaryOp::kExp, x); }
Variable Log(const Variable& x) { return Unary("Log", UnaryOp::kLog, x); }
Variable Tanh(const Variable& x) { return Unary("Tanh", UnaryOp::kTanh, x); }

Variable SwiGlu(const Variable& gate, const Variable& up) {
  return Record(ops::SwiGlu(gate.data(), up.data()), {gate, up},
                [&] { return std::make_shared<SwiGluNode>(gate, up); });
}

Variable Cast(const Variable& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (!IsFloating(x.dtype()) || !IsFloating(dtype)) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Cast: gradients pass between floating dtypes only, got ",
                     x.data().ToString(), " to ", DTypeName(dtype),
                     "; cast its data() with ops::Cast instead")));
  }
  return Record(ops::Cast(x.data(), dtype), {x},
                [&] { return std::make_shared<CastNode>(x.dtype()); });
}

Variable MaskedFill(const Variable& x, const Tensor& mask, double value) {
  return Record(ops::MaskedFill(x.data(), mask, value), {x},
                [&] { return std::make_shared<MaskedFillNode>(mask); });
}

}  // namespace tessera::functions
