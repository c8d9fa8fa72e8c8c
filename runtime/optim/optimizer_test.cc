// What all optimizers share: who takes part in a step, states by name, and an
// optimizer of one's own.
#include "runtime/optim/optimizer.h"

#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Random(const Shape& shape, uint64_t seed) {
  std::vector<float> values;
  for (double v : RandomValues(shape.num_elements(), seed)) {
    values.push_back(static_cast<float>(v));
  }
  return Tensor::FromVector(values, shape);
}

std::vector<OptimizerParameter> Parameters(int count) {
  const Shape shapes[] = {{3, 5}, {0, 4}, {7}, {1}};
  std::vector<OptimizerParameter> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.push_back(
        {std::string(1, static_cast<char>('a' + i)),
         Variable(Random(shapes[i % 4], i), /*requires_grad=*/true)});
  }
  return parameters;
}

void SetGradients(const std::vector<OptimizerParameter>& parameters,
                  uint64_t seed) {
  for (const OptimizerParameter& p : parameters) {
    Variable(p.variable).set_grad(Random(p.variable.shape(), ++seed));
  }
}

int64_t StepOf(const Optimizer& optimizer, const std::string& parameter) {
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    if (entry.parameter == parameter && entry.state == "step") {
      return std::get<int64_t>(entry.value);
    }
  }
  return -1;
}

bool HasState(const Optimizer& optimizer, const std::string& parameter,
              const std::string& state) {
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    if (entry.parameter == parameter && entry.state == state) return true;
  }
  return false;
}

TEST(Optimizer, LeavesParametersWithoutGradientAlone) {
  std::vector<OptimizerParameter> parameters = Parameters(3);
  AdamW optimizer({{parameters, {.lr = 0.1, .weight_decay = 0.5}}});
  SetGradients(parameters, 1);
  optimizer.Step();
  optimizer.ZeroGrad();
  EXPECT_FALSE(parameters[0].variable.grad().defined());
  parameters[2].variable.set_grad(Random({7}, 9));
  const auto a = parameters[0].variable.data().ToVector<float>();
  const auto c = parameters[2].variable.data().ToVector<float>();
  optimizer.Step();
  EXPECT_EQ(parameters[0].variable.data().ToVector<float>(), a);
  EXPECT_NE(parameters[2].variable.data().ToVector<float>(), c);
  EXPECT_EQ(StepOf(optimizer, "a"), 1);
  EXPECT_EQ(StepOf(optimizer, "c"), 2);
  optimizer.ZeroGrad();
  optimizer.Step();  // Nobody takes part.
  EXPECT_EQ(StepOf(optimizer, "c"), 2);
}

// OPT-09: a shard with no elements steps like the others.
TEST(Optimizer, EmptyShardsCountTheirSteps) {
  const std::vector<OptimizerParameter> parameters = Parameters(2);
  AdamW optimizer({{parameters, {}}});
  for (int step = 1; step <= 3; ++step) {
    SetGradients(parameters, step);
    optimizer.Step();
    EXPECT_EQ(StepOf(optimizer, "b"), step);
  }
  EXPECT_TRUE(HasState(optimizer, "b", "exp_avg"));
  // All that this rank has may be empty.
  AdamW empty({{{parameters[1]}, {}}});
  empty.Step();
  EXPECT_EQ(StepOf(empty, "b"), 1);
}

TEST(Optimizer, StatesAreMadeLazilyAndCountedAsSuch) {
  const auto bytes = [] {
    return AllocatorOf(CpuDevice())
        .stats()
        .current(MemoryCategory::kOptimizerState);
  };
  const int64_t before = bytes();
  Variable x(Random({1000}, 1), true);
  AdamW optimizer({{{{"x", x}}, {}}});
  optimizer.Step();
  EXPECT_EQ(bytes(), before);
  x.set_grad(Random({1000}, 2));
  optimizer.Step();
  EXPECT_EQ(bytes() - before, 2 * RoundUpAllocation(4000));
  optimizer.Step();
  EXPECT_EQ(bytes() - before, 2 * RoundUpAllocation(4000));
}

// J.30: made before sharding, it follows what the variable holds.
TEST(Optimizer, MadeBeforeShardingItStepsShards) {
  Variable x(Random({4, 2}, 1), true);
  Sgd optimizer({{{{"x", x}}, {.lr = 1, .momentum = 0.5}}});
  const Tensor shard = ops::Zeros({2, 2});
  x.set_data(shard);
  x.set_grad(ops::Ones({4}));  // Another shape, as many elements.
  optimizer.Step();
  EXPECT_EQ(shard.ToDoubles(), (std::vector<double>{-1, -1, -1, -1}));
}

// OPT-02.
TEST(Optimizer, SteppedBeforeShardingItRefuses) {
  Variable other(Random({2}, 1), true), x(Random({4, 2}, 1), true);
  AdamW optimizer({{{{"other", other}}, {}}, {{{"x", x}}, {}}});
  x.set_grad(Random({4, 2}, 2));
  optimizer.Step();
  other.set_grad(Random({2}, 3));
  x.set_data(Random({2, 2}, 1));
  const auto before = other.data().ToVector<float>();
  EXPECT_THROWS_ERROR(optimizer.Step(), kInvalid,
                      "parameter x: the gradient must have");
  x.set_grad(Random({2, 2}, 2));
  EXPECT_THROWS_ERROR(optimizer.Step(), kInvalid,
                      "created and stepped before sharding");
  // Nothing was changed, of no parameter.
  EXPECT_EQ(other.data().ToVector<float>(), before);
  EXPECT_EQ(StepOf(optimizer, "other"), 0);
}

TEST(Optimizer, RefusesGradientsOfAnotherDType) {
  Variable x(Random({2}, 1), true);
  Sgd optimizer({{{{"x", x}}, {}}});
  x.set_grad(ops::Cast(Random({2}, 1), DType::kBFloat16));
  EXPECT_THROWS_ERROR(optimizer.Step(), kInvalid, "as float32, and is");
}

TEST(Optimizer, RefusesSenselessGroups) {
  const Variable x(Random({2}, 1), true);
  EXPECT_THROWS_ERROR(Sgd({}), kInvalid, "no parameter");
  EXPECT_THROWS_ERROR(Sgd({{{{"x", x}, {"y", x}}, {}}}), kInvalid,
                      "parameter y: is listed twice");
  EXPECT_THROWS_ERROR(Sgd({{{{"x", x}}, {}}, {{{"x", x}}, {}}}), kInvalid,
                      "two have this name");
  EXPECT_THROWS_ERROR(Sgd({{{{"x", Variable()}}, {}}}), kInvalid, "undefined");
  EXPECT_THROWS_ERROR(GroupsByDecay({{"x", x}}, {"z"}, {}), kInvalid,
                      "parameter z: named for no decay");
}

TEST(Optimizer, GroupsByDecayKeepsOrderAndOptions) {
  const std::vector<OptimizerParameter> parameters = Parameters(4);
  const auto groups =
      GroupsByDecay(parameters, {"b", "d"}, {.lr = 0.5, .weight_decay = 0.1});
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[0].parameters[1].name, "c");
  EXPECT_EQ(groups[0].options.weight_decay, 0.1);
  EXPECT_EQ(groups[1].parameters[0].name, "b");
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[1].options.lr, 0.5);
  EXPECT_EQ(GroupsByDecay(parameters, {}, {}).size(), 1);
  EXPECT_EQ(GroupsByDecay(parameters, {"a", "b", "c", "d"}, {}).size(), 1);
}

TEST(Optimizer, GradScaleIsForOneStep) {
  Variable x(ops::Zeros({2}), true);
  Sgd optimizer({{{{"x", x}}, {.lr = 1}}});
  x.set_grad(ops::Ones({2}));
  optimizer.SetGradScale(ops::Full({1}, 0.25));
  optimizer.Step();
  EXPECT_EQ(x.data().ToDoubles(), (std::vector<double>{-0.25, -0.25}));
  optimizer.Step();
  EXPECT_EQ(x.data().ToDoubles(), (std::vector<double>{-1.25, -1.25}));
  EXPECT_THROWS_ERROR(optimizer.SetGradScale(ops::Ones({2})), kInvalid,
                      "one float32");
}

TEST(Optimizer, ShadowsFollow) {
  Variable x(Random({33}, 1), true), other(Random({2}, 1), true);
  AdamW optimizer({{{{"x", x}}, {.lr = 0.1}}});
  const Tensor shadow = Tensor::Empty({33}, {DType::kBFloat16});
  optimizer.SetShadow(x, shadow);
  for (int step = 0; step < 2; ++step) {
    x.set_grad(Random({33}, 5 + step));
    optimizer.Step();
    EXPECT_EQ(shadow.ToDoubles(),
              ops::Cast(x.data(), DType::kBFloat16).ToDoubles());
  }
  EXPECT_THROWS_ERROR(optimizer.SetShadow(other, shadow), kInvalid,
                      "in no group");
  EXPECT_THROWS_ERROR(optimizer.SetShadow(x, Random({33}, 1)), kInvalid,
                      "a shadow is");
  optimizer.SetShadow(x, Tensor::Empty({3}, {DType::kFloat16}));
  EXPECT_THROWS_ERROR(optimizer.Step(), kInvalid, "parameter x: the shadow");
  optimizer.SetShadow(x, Tensor());
  optimizer.Step();
}

// All bits after some steps, with a save and a load into a new optimizer at
// `resume_at`, which has its groups in another order.
template <typename O>
std::vector<std::vector<float>> Train(int resume_at) {
  const std::vector<OptimizerParameter> parameters = Parameters(4);
  const OptimizerOptions options = {
      .lr = 0.05, .weight_decay = 0.1, .momentum = 0.9};
  auto groups = GroupsByDecay(parameters, {"c"}, options);
  auto optimizer = std::make_unique<O>(groups);
  for (int step = 0; step < 6; ++step) {
    if (step == resume_at) {
      std::swap(groups[0], groups[1]);
      auto fresh = std::make_unique<O>(groups);
      EXPECT_OK(fresh->LoadState(optimizer->NamedState()));
      optimizer = std::move(fresh);
    }
    optimizer->ZeroGrad();
    SetGradients(parameters, 10 * step);
    // One that gets its first gradient late.
    if (step < 4) Variable(parameters[3].variable).ZeroGrad();
    optimizer->Step();
  }
  std::vector<std::vector<float>> bits;
  for (const OptimizerParameter& p : parameters) {
    bits.push_back(p.variable.data().template ToVector<float>());
  }
  return bits;
}

// J.72, OPT-05: the resumed run has the bits of the run that never stopped.
TEST(Optimizer, ResumesWithTheSameBits) {
  for (int resume_at : {0, 1, 3, 5}) {
    EXPECT_EQ(Train<AdamW>(resume_at), Train<AdamW>(-1)) << resume_at;
    EXPECT_EQ(Train<Sgd>(resume_at), Train<Sgd>(-1)) << resume_at;
  }
}

TEST(Optimizer, LoadedStatesAreCopies) {
  Variable x(Random({2, 3}, 1), true);
  AdamW optimizer({{{{"x", x}}, {}}});
  // Another shape and dtype, as many elements: as a file may hold them.
  const Tensor saved = ops::Full({6}, 0.5, {DType::kFloat64});
  ASSERT_OK(optimizer.LoadState(
      {{"x", "step", 4}, {"x", "exp_avg", saved}, {"x", "exp_avg_sq", saved}}));
  x.set_grad(Random({2, 3}, 2));
  optimizer.Step();
  EXPECT_EQ(StepOf(optimizer, "x"), 5);
  EXPECT_EQ(saved.ToDoubles(), std::vector<double>(6, 0.5));
}

// J.73 and all else that LoadState refuses; it then changes nothing.
TEST(Optimizer, LoadStateRefuses) {
  std::vector<OptimizerParameter> parameters = Parameters(3);
  AdamW optimizer({{parameters, {}}});
  SetGradients(parameters, 1);
  optimizer.Step();
  const std::vector<NamedOptimizerState> good = optimizer.NamedState();
  const auto expect = [&](const std::vector<NamedOptimizerState>& states,
                          const char* message) {
    EXPECT_THAT(optimizer.LoadState(states), StatusIs(kInvalid, message));
  };
  const auto without = [&](const std::string& parameter,
                           const std::string& state) {
    std::vector<NamedOptimizerState> rest;
    for (const NamedOptimizerState& entry : good) {
      const bool drop = entry.parameter == parameter &&
                        (state.empty() || entry.state == state);
      if (!drop) rest.push_back(entry);
    }
    return rest;
  };
  const auto with = [&](NamedOptimizerState entry) {
    std::vector<NamedOptimizerState> states =
        without(entry.parameter, entry.state);
    states.push_back(std::move(entry));
    return states;
  };
  expect(without("a", ""), "parameter a: requires a gradient and has no saved");
  expect(without("a", "exp_avg_sq"), "parameter a: has no saved exp_avg_sq");
  expect(without("a", "step"), "parameter a: has no saved step");
  expect(with({"z", "step", 1}), "parameter z: has a saved state");
  expect(with({"a", "max_exp_avg_sq", Random({3, 5}, 1)}),
         "has no max_exp_avg_sq");
  expect(with({"a", "exp_avg", Random({3, 4}, 1)}), "must have the elements");
  expect(with({"a", "exp_avg", 3}), "no tensor");
  expect(with({"a", "step", Random({1}, 1)}), "step must be an integer");
  expect(with({"a", "step", -1}), "step must be an integer");
  std::vector<NamedOptimizerState> twice = good;
  twice.push_back(good[1]);
  expect(twice, "comes twice");
  EXPECT_EQ(StepOf(optimizer, "a"), 1);
  EXPECT_OK(optimizer.LoadState(good));
  // A frozen parameter needs none.
  parameters[0].variable.set_requires_grad(false);
  EXPECT_OK(optimizer.LoadState(without("a", "")));
  EXPECT_FALSE(HasState(optimizer, "a", "exp_avg"));
}

// The example of the class comment.
class Momentum : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  std::vector<std::string> StateNames() const override { return {"m"}; }
  void StepGroup(const OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const Tensor& grad_scale) override {
    EXPECT_FALSE(grad_scale.defined());
    for (const ParameterUpdate& u : updates) {
      const Tensor& m = u.State("m");
      ops::ScaleInPlace(m, options.momentum);
      ops::AddInto(m, u.grad);
      ops::AddInto(u.data, m, -options.extra.at("rate"));
    }
  }
};

// OPT-07: an own optimizer; scale and shadow are done for it.
TEST(Optimizer, OfOnesOwn) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Variable x(ops::Full({2}, 1, {dtype}), true);
    Momentum optimizer(
        {{{{"x", x}}, {.momentum = 0.5, .extra = {{"rate", 0.25}}}}});
    const Tensor shadow = Tensor::Empty({2}, {DType::kBFloat16});
    if (dtype == DType::kFloat32) optimizer.SetShadow(x, shadow);
    for (int step = 0; step < 2; ++step) {
      x.set_grad(ops::Full({2}, 4, {dtype}));
      optimizer.SetGradScale(ops::Full({1}, 0.5));
      optimizer.Step();
    }
    // m is 2, then 3.
    const std::vector<double> expected = {-0.25, -0.25};
    EXPECT_EQ(x.data().ToDoubles(), expected);
    if (dtype == DType::kFloat32) {
      EXPECT_EQ(shadow.ToDoubles(), expected);
    }
    Momentum resumed({{{{"x", x}}, {}}});
    EXPECT_OK(resumed.LoadState(optimizer.NamedState()));
    EXPECT_EQ(StepOf(resumed, "x"), 2);
  }
}

}  // namespace
}  // namespace tessera
