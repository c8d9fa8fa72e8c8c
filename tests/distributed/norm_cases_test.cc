// Norms of gradients and clipping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One parameter whose gradient is `gradient` on every rank.
Scenario WithGradient(const std::vector<float>& gradient) {
  const int64_t n = static_cast<int64_t>(gradient.size());
  return {.make_model =
              [n] {
                auto model = std::make_shared<CaseModule>("Vector");
                const Variable w = model->AddParameter("w", {n});
                model->body = [w](const Variable& x) {
                  return functions::Mul(x, w);
                };
                return model;
              },
          .train =
              [gradient, n](Module& model, Pass& pass) {
                const Variable x(Tensor::FromVector(gradient, {n}));
                pass.Backward(SumOf(static_cast<CaseModule&>(model)(x)));
              },
          .num_steps = 1};
}

// J.58
TEST(NormCases, Nrm01NormIsGlobalOnAnyNumberOfRanks) {
  const Scenario scenario = WithGradient({1, 2, 2, 4});
  for (const int world_size : {1, 2, 3, 4, 8}) {
    for (const Mode& mode : AllModes(world_size)) {
      SCOPED_TRACE(mode.name + " on " + std::to_string(world_size));
      const Outcome outcome =
          RunSharded(scenario, world_size, mode,
                     [&](Module&, FullyShardedModule& sharded) {
                       EXPECT_DOUBLE_EQ(sharded.GradNorm(), 5.0);
                       EXPECT_DOUBLE_EQ(sharded.GradNorm(1.0), 9.0);
                       EXPECT_DOUBLE_EQ(sharded.ClipGradNorm(2.5), 5.0);
                     });
      const std::vector<double>& clipped = outcome.gradients.at("w");
      const double expected[] = {0.5, 1, 1, 2};
      for (int i = 0; i < 4; ++i) EXPECT_NEAR(clipped[i], expected[i], 1e-5);
    }
  }
}

TEST(NormCases, ClippingBelowTheLimitChangesNothing) {
  for (const Mode& mode : AllModes(2)) {
    const Outcome outcome =
        RunSharded(WithGradient({1, 2, 2, 4}), 2, mode,
                   [](Module&, FullyShardedModule& sharded) {
                     EXPECT_DOUBLE_EQ(sharded.ClipGradNorm(10.0), 5.0);
                   });
    EXPECT_THAT(outcome.gradients.at("w"), testing::ElementsAre(1, 2, 2, 4))
        << mode.name;
  }
}

TEST(NormCases, Nrm03InfinityNormIsTheLargestAbsoluteValue) {
  for (const Mode& mode : AllModes(4)) {
    RunSharded(WithGradient({-3, 2}), 4, mode,
               [&](Module&, FullyShardedModule& sharded) {
                 EXPECT_DOUBLE_EQ(sharded.GradNorm(kInfinity), 3.0)
                     << mode.name;
               });
  }
}

// The same bits under every strategy, layout and unit size.
TEST(NormCases, NormsAreEqualBitForBit) {
  const Scenario scenario{
      .make_model =
          [] {
            return MakeMlp({7, 13, 5, 3});
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x = CaseInput(3, 7, pass.rank(), pass.step());
            pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
          },
      .num_steps = 1};
  for (const double type : {2.0, 1.0, kInfinity}) {
    std::vector<double> norms;
    for (Mode mode : AllModes(4)) {
      for (const WrapPolicy& policy :
           {WrapPolicy(WrapByDefault{}), WrapPolicy(WrapNothing{})}) {
        mode.options.auto_wrap_policy = policy;
        std::vector<double> of_rank(4);
        RunSharded(
            scenario, 4, mode, [&](Module&, FullyShardedModule& sharded) {
              of_rank[sharded.mesh().world()->rank()] = sharded.GradNorm(type);
            });
        norms.insert(norms.end(), of_rank.begin(), of_rank.end());
      }
    }
    EXPECT_GT(norms[0], 0.0);
    EXPECT_THAT(norms, testing::Each(norms[0])) << "norm type " << type;
  }
}

// Parameters that are not sharded count once.
TEST(NormCases, IgnoredParametersBelongToTheNorm) {
  const Scenario scenario{
      .make_model =
          [] {
            return MakeMlp({7, 5, 3});
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x = CaseInput(3, 7, pass.rank(), pass.step());
            pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
          },
      .num_steps = 1};
  for (const double type : {2.0, 1.0, kInfinity}) {
    for (Mode mode : AllModes(3)) {
      std::vector<double> norms;
      for (const bool ignore : {false, true}) {
        if (ignore) mode.options.ignored_patterns = {".*\\.bias"};
        std::vector<double> of_rank(3);
        RunSharded(
            scenario, 3, mode, [&](Module&, FullyShardedModule& sharded) {
              of_rank[sharded.mesh().world()->rank()] = sharded.GradNorm(type);
            });
        norms.insert(norms.end(), of_rank.begin(), of_rank.end());
      }
      EXPECT_GT(norms[0], 0.0);
      EXPECT_THAT(norms, testing::Each(norms[0]))
          << mode.name << ", norm type " << type;
    }
  }
}

// J.60: an element is on one rank, which can clip it by its value.
// Replicas that clipped by different norms would drift apart. USE-03: what the
// caller is left to keep equal can be checked.
TEST(NormCases, IgnoredGradientsThatAreNotAveragedGiveOneNorm) {
  Scenario scenario{
      .make_model =
          [] {
            return MakeMlp({4, 6, 3});
          },
      .train =
          [](Module& model, Pass& pass) {
            const Variable x = CaseInput(2, 4, pass.rank(), 1);
            pass.Backward(SumOfSquares(static_cast<CaseModule&>(model)(x)));
          },
      .num_steps = 0};
  for (Mode mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    mode.options.ignored_patterns = {".*\\.bias"};
    mode.options.reduce_ignored_gradients = false;
    std::vector<double> norms(4), own(4);
    RunSharded(
        scenario, 4, mode, [&](Module& model, FullyShardedModule& sharded) {
          const int rank = sharded.mesh().world()->rank();
          Pass pass(rank, 0, 1.0);
          scenario.train(model, pass);
          norms[rank] = sharded.GradNorm();
          const Variable bias = model.NamedParameters()[1].variable;
          own[rank] = bias.grad().ToDoubles()[0];
          EXPECT_OK(sharded.CheckIgnoredParameters());
          if (rank == 2)
            ops::Fill(bias.data().Narrow(0, 1, 1), FillValue(1) + 1);
          EXPECT_THAT(sharded.CheckIgnoredParameters(),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               "the parameters kept out of sharding of 0.bias "
                               "differ between rank 0 and rank 2"));
          if (rank == 2) ops::Fill(bias.data().Narrow(0, 1, 1), FillValue(1));
        });
    for (int rank = 1; rank < 4; ++rank) {
      EXPECT_EQ(norms[rank], norms[0]);
      EXPECT_NE(own[rank], own[0]);
    }
  }
}

TEST(NormCases, ClippingByValueWorksOnShards) {
  for (const Mode& mode : AllModes(4)) {
    const Outcome outcome = RunSharded(
        WithGradient({-3, 2, 0.25, -0.5, 7}), 4, mode,
        [](Module& model, FullyShardedModule&) {
          for (const NamedVariable& p : model.NamedParameters()) {
            const Tensor& grad = p.variable.grad();
            std::vector<float> values = grad.ToVector<float>();
            for (float& v : values) v = std::clamp(v, -1.0F, 1.0F);
            ops::Copy(Tensor::FromVector(values, grad.shape()), grad);
          }
        });
    EXPECT_THAT(outcome.gradients.at("w"),
                testing::ElementsAre(-1, 1, 0.25, -0.5, 1))
        << mode.name;
  }
}

// J.61: ranks that own nothing join in.
TEST(NormCases, OneElementOnFourRanks) {
  for (const Mode& mode : AllModes(4)) {
    RunSharded(WithGradient({-2}), 4, mode,
               [&](Module&, FullyShardedModule& sharded) {
                 EXPECT_DOUBLE_EQ(sharded.ClipGradNorm(1.0), 2.0) << mode.name;
               });
  }
}

TEST(NormCases, WithoutGradientsTheNormIsZero) {
  Scenario scenario = WithGradient({1, 2});
  scenario.num_steps = 0;
  for (const Mode& mode : AllModes(2)) {
    RunSharded(scenario, 2, mode, [&](Module&, FullyShardedModule& sharded) {
      EXPECT_EQ(sharded.GradNorm(), 0.0) << mode.name;
    });
  }
}

}  // namespace
}  // namespace tessera
