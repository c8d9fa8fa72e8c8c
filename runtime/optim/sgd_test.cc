// SGD over several steps against its formula in double precision.
#include "runtime/optim/sgd.h"

#include "runtime/ops/elementwise.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

void ExpectSteps(const OptimizerOptions& o, DType dtype) {
  const int64_t n = 37;
  Variable x(ops::Cast(Tensor::FromVector(RandomValues(n, 1), {n}), dtype),
             true);
  Values p = x.data().ToDoubles(), buffer;
  Sgd optimizer({{{{"x", x}}, o}});
  for (int step = 0; step < 5; ++step) {
    x.set_grad(
        ops::Cast(Tensor::FromVector(RandomValues(n, 5 + step), {n}), dtype));
    Values g = x.grad().ToDoubles();
    for (int64_t i = 0; i < n; ++i) g[i] += o.weight_decay * p[i];
    if (o.momentum != 0) {
      if (buffer.empty()) {
        buffer = g;
      } else {
        for (int64_t i = 0; i < n; ++i) {
          buffer[i] = o.momentum * buffer[i] + (1 - o.dampening) * g[i];
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        g[i] = o.nesterov ? g[i] + o.momentum * buffer[i] : buffer[i];
      }
    }
    for (int64_t i = 0; i < n; ++i) p[i] -= o.lr * g[i];
    optimizer.Step();
    EXPECT_TRUE(AllCloseAs(dtype, x.data().ToDoubles(), p, 5)) << step;
  }
}

TEST(Sgd, FollowsItsFormula) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    ExpectSteps({.lr = 0.1}, dtype);
    ExpectSteps({.lr = 0.1, .weight_decay = 0.2}, dtype);
    ExpectSteps({.lr = 0.1, .momentum = 0.9}, dtype);
    ExpectSteps({.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, dtype);
    ExpectSteps(
        {.lr = 0.1, .weight_decay = 0.2, .momentum = 0.9, .nesterov = true},
        dtype);
  }
}

TEST(Sgd, RefusesNesterovWithoutItsMomentum) {
  const Variable x(ops::Zeros({2}), true);
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THROWS_ERROR(Sgd({{{{"x", x}}, {.nesterov = true}}}), code,
                      "nesterov needs momentum");
  EXPECT_THROWS_ERROR(
      Sgd({{{{"x", x}}, {.momentum = 1, .dampening = 0.1, .nesterov = true}}}),
      code, "nesterov needs momentum");
}

// A group without momentum has no buffers, to save or to demand.
TEST(Sgd, KeepsBuffersWhereThereIsMomentum) {
  Variable x(ops::Ones({2}), true), y(ops::Ones({3}), true);
  const std::vector<ParameterGroup> groups = {{{{"x", x}}, {.momentum = 0.9}},
                                              {{{"y", y}}, {}}};
  Sgd optimizer(groups);
  x.set_grad(ops::Ones({2}));
  y.set_grad(ops::Ones({3}));
  optimizer.Step();
  const std::vector<NamedOptimizerState> states = optimizer.NamedState();
  ASSERT_EQ(states.size(), 3);
  EXPECT_EQ(states[1].state, "momentum_buffer");
  EXPECT_EQ(states[2].parameter, "y");
  Sgd other(groups);
  EXPECT_OK(other.LoadState(states));
  std::vector<NamedOptimizerState> more = states;
  more.push_back({"y", "momentum_buffer", ops::Ones({3})});
  EXPECT_THAT(other.LoadState(more),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "with its options, has no momentum_buffer"));
}

}  // namespace
}  // namespace tessera
