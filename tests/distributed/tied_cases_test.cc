// One tensor under two names, in one unit and in two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "fsdp/wrap_policy.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/embedding.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

// ids -> table [5, 2] -> a layer -> scores against the table again.
std::shared_ptr<CaseModule> MakeTied() {
  auto model = std::make_shared<CaseModule>("TiedModel");
  auto embedding = std::make_shared<CaseModule>("Embedding");
  const Variable table = embedding->AddParameter("weight", {5, 2});
  embedding->body = [table](const Variable& ids) {
    return functions::Embedding(ids.data(), table);
  };
  auto layer = MakeLinear(2, 2);
  auto head = std::make_shared<CaseModule>("Head");
  const Variable tied = head->AddParameter("weight", table);
  head->body = [tied](const Variable& x) {
    return functions::Linear(x, tied, Variable());
  };
  model->AddChild("embedding", embedding);
  model->AddChild("layer", layer);
  model->AddChild("head", head);
  model->body = [embedding, layer, head](const Variable& ids) {
    return (*head)(functions::Gelu((*layer)((*embedding)(ids)),
                                   functions::GeluKind::kTanh));
  };
  return model;
}

Scenario TiedScenario() {
  return {.make_model = MakeTied, .train = [](Module& model, Pass& pass) {
            const std::vector<int64_t> ids = {
                pass.rank() % 5, (pass.rank() + pass.step()) % 5, 4};
            const Variable x(Tensor::FromVector(ids, {3}));
            pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
          }};
}

// J.84. By default the two uses make one unit; wrapped by class they are in two
// units, and the table in the root's; wrapped not at all they are in one.
TEST(TiedCases, Tie02TableUsedInTwoUnits) {
  for (const WrapPolicy& policy :
       {WrapPolicy(WrapByDefault{}), WrapPolicy(WrapByClass{{"Embedding"}}),
        WrapPolicy(WrapByClass{{"Embedding", "Head", "Layer"}}),
        WrapPolicy(WrapNothing{})}) {
    const Outcome expected = RunOracle(TiedScenario(), 2);
    for (Mode mode : AllModes(2)) {
      SCOPED_TRACE(absl::StrCat(mode.name, ", policy ", policy.index()));
      mode.options.auto_wrap_policy = policy;
      ExpectSame(RunSharded(TiedScenario(), 2, mode), expected, 1e-5);
    }
  }
}

TEST(TiedCases, Tie02ManyRanks) { ExpectOracle(TiedScenario(), {1, 3, 8}); }

TEST(TiedCases, Tie03TieSurvivesSharding) {
  for (const Mode& mode : AllModes(2)) {
    RunSharded(TiedScenario(), 2, mode,
               [&](Module& model, FullyShardedModule& sharded) {
                 const auto all =
                     model.NamedParameters(/*keep_duplicates=*/true);
                 ASSERT_EQ(all.size(), 4u) << mode.name;
                 EXPECT_EQ(all[0].name, "embedding.weight");
                 EXPECT_EQ(all[3].name, "head.weight");
                 EXPECT_TRUE(all[0].variable.Is(all[3].variable)) << mode.name;
                 int64_t count = 0;
                 sharded.ForEachFullParameter(
                     [&](const std::string&, const Tensor& whole) {
                       count += whole.num_elements();
                     });
                 EXPECT_EQ(count, 10 + 4 + 2) << mode.name;
               });
  }
}

// Three of four ranks hold empty pieces of every one of these.
TEST(TiedCases, Tie05EmptyShardsAreNotTies) {
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Rows");
            std::vector<Variable> rows;
            for (int i = 0; i < 6; ++i) {
              rows.push_back(
                  model->AddParameter(absl::StrCat("row", i), {1, 3 + i}));
            }
            model->body = [rows](const Variable& x) {
              Variable sum = functions::Scale(x, 0.0);
              for (const Variable& row : rows) {
                sum = functions::Add(sum, functions::Mul(x, SumOfSquares(row)));
              }
              return sum;
            };
            return model;
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x = CaseInput(1, 2, pass.rank(), pass.step());
            pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
          }};
  const Outcome outcome = RunSharded(scenario, 4, PerParameter());
  ASSERT_EQ(outcome.shapes.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(outcome.shapes.at(absl::StrCat("row", i)), (Shape{1, 3 + i}));
  }
  ExpectOracle(scenario, {4});
}

// A gradient of 10 elements that is 2 sqrt(20) each: squared norm 800.
TEST(TiedCases, Tie09TiedGradientCountsOnceInTheNorm) {
  const double element = std::sqrt(80.0);
  const Scenario scenario{
      .make_model =
          [] {
            auto model = std::make_shared<CaseModule>("Twice");
            auto a = std::make_shared<CaseModule>("A");
            auto b = std::make_shared<CaseModule>("B");
            const Variable table = a->AddParameter("weight", {5, 2});
            b->AddParameter("weight", table);
            const auto body = [table](const Variable& x) {
              return functions::Mul(x, SumOf(table));
            };
            a->body = body;
            b->body = body;
            model->AddChild("a", a);
            model->AddChild("b", b);
            model->body = [a, b](const Variable& x) {
              return functions::Add((*a)(x), (*b)(x));
            };
            return model;
          },
      .train =
          [element](Module& model, Pass& pass) {
            const Variable x(ops::Full({1}, element / 2));
            pass.Backward(SumOf(static_cast<CaseModule&>(model)(x)));
          },
      .num_steps = 1};
  for (const Mode& mode : AllModes(4)) {
    RunSharded(scenario, 4, mode, [&](Module&, FullyShardedModule& sharded) {
      EXPECT_NEAR(sharded.ClipGradNorm(1e9), 28.284271, 1e-4) << mode.name;
    });
  }
}

}  // namespace
}  // namespace tessera
