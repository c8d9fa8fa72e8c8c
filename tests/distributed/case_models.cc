#include "tests/distributed/case_models.h"

#include "kernels/status.h"
#include "runtime/autograd/node.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/functions/views.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/random_tensors.h"

namespace tessera {

void CaseModule::ResetParameters(const Initializer& initializer) {
  for (const NamedVariable& p : own_parameters()) {
    initializer.Normal(p.variable, p.name, 0.0, 0.5);
  }
}

std::shared_ptr<CaseModule> MakeLinear(int64_t in, int64_t out, bool bias,
                                       const std::string& class_name) {
  auto linear = std::make_shared<CaseModule>(class_name);
  const Variable weight = linear->AddParameter("weight", {out, in});
  Variable offset;
  if (bias) offset = linear->AddParameter("bias", {out});
  linear->body = [weight, offset](const Variable& x) {
    return functions::Linear(x, weight, offset);
  };
  return linear;
}

std::shared_ptr<CaseModule> MakeMlp(const std::vector<int64_t>& widths) {
  auto mlp = std::make_shared<CaseModule>("Mlp");
  std::vector<std::shared_ptr<CaseModule>> layers;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layers.push_back(
        mlp->AddChild(std::to_string(i), MakeLinear(widths[i], widths[i + 1])));
  }
  mlp->body = [layers](const Variable& x) {
    Variable y = x;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (i > 0) y = functions::Gelu(y, functions::GeluKind::kTanh);
      y = (*layers[i])(y);
    }
    return y;
  };
  return mlp;
}

namespace {

class ThrowNode final : public Node {
 public:
  const char* name() const override { return "Throw"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>&) override {
    throw Error(absl::InternalError("failed on purpose"));
  }
};

}  // namespace

Variable ThrowsInBackward(const Variable& x) {
  return Record(x.data(), {x}, [] { return std::make_shared<ThrowNode>(); });
}

double FillValue(int64_t i) {
  return static_cast<double>((37 * i) % 101 - 50) / 100;
}

std::vector<double> FillValues(int64_t count) {
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = FillValue(i);
  return values;
}

void FillParameters(Module& module) {
  for (const NamedVariable& p : module.NamedParameters()) {
    const Tensor& data = p.variable.data();
    const Shape& shape = data.shape();
    if (!IsFloating(data.dtype())) {
      std::vector<uint8_t> bytes(shape.num_elements());
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<uint8_t>(37 * i);
      }
      ops::Copy(Tensor::FromVector(bytes, shape, data.device()), data);
      continue;
    }
    std::vector<float> values(shape.num_elements());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(FillValue(static_cast<int64_t>(i)));
    }
    ops::Copy(Tensor::FromVector(values, shape, data.device()), data);
  }
}

Variable CaseInput(int64_t rows, int64_t columns, int rank, int step) {
  const std::vector<double> values =
      RandomValues(rows * columns, 1000 * step + rank + 1);
  return Variable(Tensor::FromVector(
      std::vector<float>(values.begin(), values.end()), {rows, columns}));
}

Variable SumOf(const Variable& y) {
  const int64_t n = y.shape().num_elements();
  const Variable ones(ops::Ones({n, 1}, {y.dtype(), y.device()}));
  return functions::Reshape(
      functions::MatMul(functions::Reshape(y, {1, n}), ones), {});
}

Variable SumOfSquares(const Variable& y) {
  const int64_t n = y.shape().num_elements();
  return functions::Reshape(functions::MatMul(functions::Reshape(y, {1, n}),
                                              functions::Reshape(y, {n, 1})),
                            {});
}

}  // namespace tessera
