// AdamW over several steps and groups against its formula in double precision.
#include "runtime/optim/adamw.h"

#include <cmath>

#include "runtime/ops/elementwise.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

Tensor TensorOf(const Values& values, const Shape& shape, DType dtype) {
  return ops::Cast(Tensor::FromVector(values, shape), dtype);
}

struct Reference {
  Values p, m, v;
  int64_t step = 0;

  void Step(const Values& gradient, const OptimizerOptions& o) {
    ++step;
    m.resize(p.size());
    v.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] -= o.lr * o.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gradient[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gradient[i] * gradient[i];
      const double m_hat = m[i] / (1 - std::pow(o.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, step));
      p[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

TEST(AdamW, FollowsItsFormulaGroupByGroup) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Shape shapes[] = {{5, 7}, {33}, {}, {0, 3}};
    std::vector<OptimizerParameter> parameters;
    std::vector<Reference> expected;
    for (const Shape& shape : shapes) {
      const Values start = RandomValues(shape.num_elements(), 1);
      const Variable variable(TensorOf(start, shape, dtype), true);
      parameters.push_back({std::to_string(parameters.size()), variable});
      expected.push_back({variable.data().ToDoubles(), {}, {}, 0});
    }
    const OptimizerOptions base = {
        .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95};
    AdamW optimizer(GroupsByDecay(parameters, {"1", "2"}, base));
    ASSERT_EQ(optimizer.groups().size(), 2);
    optimizer.options(1).lr = 0.003;
    for (int step = 0; step < 5; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        Variable& variable = parameters[i].variable;
        const Values gradient =
            RandomValues(variable.shape().num_elements(), 10 * step + i);
        variable.set_grad(TensorOf(gradient, variable.shape(), dtype));
        const int group = i == 1 || i == 2;
        expected[i].Step(variable.grad().ToDoubles(), optimizer.options(group));
      }
      optimizer.Step();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(AllCloseAs(dtype, parameters[i].variable.data().ToDoubles(),
                               expected[i].p, 5))
            << "parameter " << i << " at step " << step;
      }
    }
    EXPECT_EQ(optimizer.options(1).weight_decay, 0);
  }
}

TEST(AdamW, KeepsFloat32MomentsOfHalves) {
  Variable x(TensorOf({1, 2}, {2}, DType::kBFloat16), true);
  x.set_grad(TensorOf({1, 1}, {2}, DType::kFloat32));
  AdamW optimizer({{{{"x", x}}, {.lr = 0.5}}});
  optimizer.Step();
  EXPECT_TRUE(AllCloseAs(DType::kBFloat16, x.data().ToDoubles(), {0.5, 1.5}));
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    if (entry.state == "step") continue;
    EXPECT_EQ(std::get<Tensor>(entry.value).dtype(), DType::kFloat32);
  }
}

}  // namespace
}  // namespace tessera
