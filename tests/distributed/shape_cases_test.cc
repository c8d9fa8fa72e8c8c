// Parameters of awkward shapes, strides and types under every strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "runtime/functions/cross_entropy.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/embedding.h"
#include "runtime/functions/matmul.h"
#include "runtime/functions/views.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

Variable Forward(Module& module, const Variable& x) {
  return static_cast<CaseModule&>(module)(x);
}

// A model whose loss is the squared output of rank- and step-dependent inputs.
Scenario OnInputsOf(int64_t columns,
                    std::function<std::shared_ptr<Module>()> make_model) {
  return {.make_model = std::move(make_model),
          .train = [columns](Module& model, Pass& pass) {
            const Variable x = CaseInput(2, columns, pass.rank(), pass.step());
            pass.Backward(SumOfSquares(Forward(model, x)));
          }};
}

// The losses are sums over all outputs, so gradients are of order 1 to 10.
TEST(ShapeCases, Shp01UnevenRowsTrainAndGather) {
  ExpectOracle(OnInputsOf(17, [] { return MakeLinear(17, 5); }), {4, 8});
}

TEST(ShapeCases, Shp02EmbeddingOf33RowsOn8Ranks) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Table");
            const Variable table = model->AddParameter("weight", {33, 4});
            model->body = [table](const Variable& ids) {
              return functions::Embedding(ids.data(), table);
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            const std::vector<int64_t> ids = {pass.rank(), 32, 5 + pass.step(),
                                              32 - pass.rank()};
            const Variable rows =
                Forward(model, Variable(Tensor::FromVector(ids, {4})));
            pass.Backward(SumOfSquares(rows));
          },
      .num_steps = 1};
  ExpectOracle(scenario, {8, 3}, 1e-6);
}

TEST(ShapeCases, Shp03GatheredTensorHasItsTrueShape) {
  Scenario scenario = OnInputsOf(10, [] { return MakeLinear(10, 5, false); });
  scenario.num_steps = 0;
  for (const Mode& mode : AllModes(4)) {
    const Outcome outcome = RunSharded(scenario, 4, mode);
    EXPECT_EQ(outcome.shapes.at("weight"), (Shape{5, 10})) << mode.name;
    const std::vector<double>& values = outcome.parameters.at("weight");
    const std::vector<double> fill = FillValues(50);
    EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0),
                std::accumulate(fill.begin(), fill.end(), 0.0), 1e-5)
        << mode.name;
  }
}

// J.33. y = s x with x = rank + 1: the mean gradient of 3 ranks is 2.
TEST(ShapeCases, Shp04ScalarParameter) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Scale");
            const Variable s = model->AddParameter("s", Shape{});
            model->body = [s](const Variable& x) {
              return functions::Mul(x, s);
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x(ops::Full({1}, pass.rank() + 1.0));
            pass.Backward(SumOf(Forward(model, x)));
          },
      .num_steps = 1,
      .learning_rate = 1.0};
  ExpectOracle(scenario, {3});
  for (const Mode& mode : AllModes(3)) {
    const Outcome outcome = RunSharded(scenario, 3, mode);
    EXPECT_EQ(outcome.shapes.at("s"), Shape{}) << mode.name;
    EXPECT_NEAR(outcome.parameters.at("s")[0], FillValue(0) - 2.0, 1e-6)
        << mode.name;
  }
}

// The first of four ranks gets the sum, the others have nothing of it. One
// element is no four equal parts: asked of a communicator, it is refused.
TEST(ShapeCases, Shp05ReductionOfOneElement) {
  Scenario scenario = OnInputsOf(1, [] { return MakeLinear(1, 1, false); });
  scenario.num_steps = 1;
  scenario.train = [](Module& model, Pass& pass) {
    const Variable x(ops::Full({1, 1}, pass.rank() + 1.0));
    pass.Backward(SumOf(Forward(model, x)));
  };
  for (Mode mode : {FullShard(), PerParameter()}) {
    mode.options.gradient_divisor = 1.0;
    RunSharded(scenario, 4, mode, [](Module&, FullyShardedModule& sharded) {
      const Tensor grad = sharded.Parameters()[0].variable.grad();
      if (sharded.mesh().world()->rank() == 0) {
        EXPECT_THAT(grad.ToDoubles(), ElementsAre(1 + 2 + 3 + 4));
      } else {
        EXPECT_EQ(grad.defined() ? grad.num_elements() : 0, 0);
      }
    });
  }
  RunRanks(4, [](const std::shared_ptr<Communicator>& world) {
    Stream stream(CurrentDevice(), "reduce", StreamMode::kInline);
    const ReducePart one{ops::Ones({1}), ops::Zeros({1})};
    EXPECT_THAT(world->ReduceScatter({&one, 1}, {}, {}, stream, "w"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "ReduceScatter of 'w': part 0: wanted"));
  });
}

TEST(ShapeCases, Shp06LayersOfOneElement) {
  ExpectOracle(OnInputsOf(1, [] { return MakeMlp({1, 1, 1}); }), {4});
}

TEST(ShapeCases, Shp08FrozenBytesBesideATrainedAdapter) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("Quantised");
    const Variable bytes = model->AddParameter("bytes", {7, 5}, DType::kUInt8);
    const Variable adapter = model->AddParameter("adapter", {3, 7});
    model->body = [bytes, adapter](const Variable& x) {
      const Variable base(
          ops::Scale(ops::Cast(bytes.data(), DType::kFloat32), 1.0 / 256));
      return functions::Linear(functions::Linear(x, base, Variable()), adapter,
                               Variable());
    };
    return model;
  };
  const Scenario scenario = OnInputsOf(5, make_model);
  ExpectOracle(scenario, {4});
  std::vector<double> expected(35);
  for (int i = 0; i < 35; ++i) expected[i] = 37 * i % 256;
  for (const Mode& mode : AllModes(4)) {
    EXPECT_EQ(RunSharded(scenario, 4, mode).parameters.at("bytes"), expected)
        << mode.name;
  }
}

// J.33. Element (r, c) stays where it is, whatever the order in memory.
TEST(ShapeCases, Shp09ColumnMajorParameter) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("ColumnMajor");
    const Variable weight = model->AddParameter(
        "weight", Variable(ops::Zeros({6, 4}).Transpose(0, 1), true));
    model->body = [weight](const Variable& x) {
      return functions::MatMul(
          x, functions::Contiguous(functions::Transpose(weight, 0, 1)));
    };
    return model;
  };
  ExpectOracle(OnInputsOf(6, make_model), {4, 3});
}

Variable ColumnMajor(int64_t rows, int64_t columns) {
  return Variable(ops::Zeros({columns, rows}).Transpose(0, 1), true);
}

// The same where a weight's gradient is written straight into its place: twice
// in one backward, so that the second is added there.
TEST(ShapeCases, Shp09ColumnMajorWeightsOfLinears) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("ColumnMajor");
    const Variable w = model->AddParameter("w", ColumnMajor(4, 6));
    const Variable square = model->AddParameter("square", ColumnMajor(4, 4));
    model->body = [w, square](const Variable& x) {
      Variable y = functions::Linear(x, w, Variable());
      for (int i = 0; i < 2; ++i) y = functions::Linear(y, square, Variable());
      return functions::Linear(y, square, Variable(),
                               functions::WeightLayout::kInOut);
    };
    return model;
  };
  ExpectOracle(OnInputsOf(6, make_model), {1, 2, 4});
}

TEST(ShapeCases, Shp09ColumnMajorTableAtBothEnds) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("ColumnMajor");
    const Variable table = model->AddParameter("table", ColumnMajor(9, 4));
    model->body = [table](const Variable& ids) {
      const Variable hidden = functions::Embedding(ids.data(), table);
      return functions::LinearCrossEntropy(hidden, table, ids.data());
    };
    return model;
  };
  const auto train = [](Module& model, Pass& pass) {
    for (int part = 0; part < 2; ++part) {
      const std::vector<int64_t> ids = {pass.rank(), 8, part + pass.step()};
      pass.Backward(Forward(model, Variable(Tensor::FromVector(ids, {3}))));
    }
  };
  ExpectOracle({.make_model = make_model, .train = train}, {1, 2, 4});
}

// J.28
TEST(ShapeCases, Shp10ThreeTypesInOneUnit) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("Mixed");
    const Variable w = model->AddParameter("w", {3, 3}, DType::kBFloat16);
    const Variable norm = model->AddParameter("norm", {3});
    const Variable scale = model->AddParameter("scale", {1}, DType::kFloat16);
    model->body = [w, norm, scale](const Variable& x) {
      Variable y = functions::Linear(functions::Cast(x, DType::kBFloat16), w,
                                     Variable());
      y = functions::Mul(functions::Cast(y, DType::kFloat32), norm);
      return functions::Mul(functions::Cast(y, DType::kFloat16), scale);
    };
    return model;
  };
  Scenario scenario = OnInputsOf(3, make_model);
  scenario.train = [](Module& model, Pass& pass) {
    const Variable x = CaseInput(2, 3, pass.rank(), pass.step());
    pass.Backward(
        SumOfSquares(functions::Cast(Forward(model, x), DType::kFloat32)));
  };
  scenario.num_steps = 1;
  // The coarsest of the three types rounds once.
  ExpectOracle(scenario, {2}, 1e-2);
}

TEST(ShapeCases, Shp12Shp13VectorsShorterThanTheRanks) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("Vectors");
    const Variable two = model->AddParameter("two", {2});
    const Variable five = model->AddParameter("five", {5});
    model->body = [two, five](const Variable& x) {
      return functions::MatMul(
          functions::Mul(x, functions::Reshape(two, {1, 2})),
          functions::Expand(functions::Reshape(five, {1, 5}), {2, 5}));
    };
    return model;
  };
  ExpectOracle(OnInputsOf(2, make_model), {8});
}

TEST(ShapeCases, Shp13OneParameterOfTwoElementsOn8Ranks) {
  const auto make_model = [] {
    auto model = std::make_shared<CaseModule>("Small");
    const Variable two = model->AddParameter("two", {2});
    model->body = [two](const Variable& x) { return functions::Mul(x, two); };
    return model;
  };
  ExpectOracle(OnInputsOf(2, make_model), {8});
}

TEST(ShapeCases, Shp14EveryRankSeesTheSameNamesAndShapes) {
  Scenario scenario = OnInputsOf(3, [] { return MakeMlp({3, 4, 1}); });
  scenario.num_steps = 1;
  for (const Mode& mode : AllModes(4)) {
    std::vector<std::string> lists(4);
    RunSharded(scenario, 4, mode,
               [&](Module& model, FullyShardedModule& sharded) {
                 std::string list;
                 for (const NamedVariable& p : model.NamedParameters()) {
                   absl::StrAppend(&list, p.name, ";");
                 }
                 for (const ShardedParameter& p : sharded.Parameters()) {
                   absl::StrAppend(&list, p.name, p.global_shape.ToString());
                 }
                 lists[sharded.mesh().world()->rank()] = list;
               });
    EXPECT_THAT(lists, testing::Each(lists[0])) << mode.name;
    EXPECT_THAT(lists[0], testing::HasSubstr("1.bias[1]")) << mode.name;
  }
}

}  // namespace
}  // namespace tessera
