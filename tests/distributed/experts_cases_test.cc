// Units that some ranks run and others do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/recompute.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

// Four experts; rank r runs expert (r + step) mod 4.
std::shared_ptr<CaseModule> MakeExperts() {
  auto model = std::make_shared<CaseModule>("Model");
  auto first = model->AddChild("first", MakeLinear(3, 3));
  auto experts =
      model->AddChild("experts", std::make_shared<CaseModule>("Experts"));
  experts->set_ranks_may_differ(true);
  std::vector<std::shared_ptr<CaseModule>> list;
  for (int i = 0; i < 4; ++i) {
    list.push_back(experts->AddChild(absl::StrCat("e", i), MakeLinear(3, 3)));
  }
  auto last = model->AddChild("last", MakeLinear(3, 2));
  // The first column of the input says which expert.
  experts->body = [list](const Variable& x) {
    const int which = static_cast<int>(x.data().ToDoubles()[0]);
    return (*list[which])(x);
  };
  model->body = [first, experts, last](const Variable& x) {
    return (*last)((*experts)(x));
  };
  return model;
}

TEST(ExpertsCases, Use02RanksRunDifferentExperts) {
  Scenario scenario{
      .make_model = MakeExperts,
      .train =
          [](Module& model, Pass& pass) {
            Variable x = CaseInput(2, 3, pass.rank(), pass.step());
            ops::Fill(x.data().Select(0, 0).Select(0, 0),
                      (pass.rank() + pass.step()) % 4);
            pass.Backward(functions::Scale(SumOfSquares(Case(model)(x)), 0.1));
          },
      .num_steps = 8,
      .learning_rate = 0.05};
  ExpectOracle(scenario, {2, 4});
}

// What is run again in backward, in a model of experts.
enum class Again { kNothing, kExperts, kEachExpert, kBlocks };

// x plus what those of four experts make of it whose bit is set in *mask.
std::shared_ptr<CaseModule> MakeMixture(const std::shared_ptr<int>& mask,
                                        Again again) {
  auto experts = std::make_shared<CaseModule>("Experts");
  experts->set_ranks_may_differ(true);
  std::vector<std::shared_ptr<CaseModule>> list;
  for (int i = 0; i < 4; ++i) {
    list.push_back(experts->AddChild(absl::StrCat("e", i), MakeLinear(3, 3)));
  }
  experts->body = [list, mask, again](const Variable& x) {
    Variable sum = x;
    for (int i = 0; i < 4; ++i) {
      if ((*mask >> i) % 2 == 0) continue;
      const auto expert = [layer = list[i]](const Variable& z) {
        return (*layer)(z);
      };
      sum = functions::Add(
          sum, again == Again::kEachExpert ? Recompute(expert, x) : expert(x));
    }
    return sum;
  };
  return experts;
}

// Layers around two mixtures. The first number of the input is the mask.
std::shared_ptr<CaseModule> MakeMixtures(Again again) {
  auto model = std::make_shared<CaseModule>("Model");
  auto mask = std::make_shared<int>(0);
  std::vector<std::shared_ptr<CaseModule>> steps;
  for (int i = 0; i < 5; ++i) {
    steps.push_back(model->AddChild(
        absl::StrCat("s", i),
        i % 2 == 1 ? MakeMixture(mask, again) : MakeLinear(3, 3)));
  }
  model->body = [steps, mask, again](const Variable& x) {
    const int bits = static_cast<int>(x.data().ToDoubles()[0]);
    const auto run = [=](const Variable& z, int begin, int end) {
      Variable y = z;
      *mask = bits;  // Also when it runs again.
      for (int i = begin; i < end; ++i) y = (*steps[i])(y);
      return y;
    };
    const auto again_if = [&](bool recompute, const Variable& z, int begin,
                              int end) {
      if (!recompute) return run(z, begin, end);
      return Recompute([=](const Variable& w) { return run(w, begin, end); },
                       z);
    };
    if (again == Again::kBlocks) {
      return again_if(true, again_if(true, x, 0, 3), 3, 5);
    }
    Variable y = x;
    for (int i = 0; i < 5; ++i) {
      y = again_if(again == Again::kExperts && i % 2 == 1, y, i, i + 1);
    }
    return y;
  };
  return model;
}

// No expert, one, or several; 15 different masks.
Variable MixtureInput(int rank, int step) {
  Variable x = CaseInput(2, 3, rank, step);
  ops::Fill(x.data().Select(0, 0).Select(0, 0), (5 * rank + 3 * step) % 16);
  return x;
}

Variable MixtureLoss(Module& model, const Variable& x) {
  return functions::Scale(SumOfSquares(Case(model)(x)), 0.001);
}

void ExpectMixtures(const std::function<void(Module&, Pass&)>& train) {
  for (const Again again :
       {Again::kNothing, Again::kExperts, Again::kEachExpert, Again::kBlocks}) {
    SCOPED_TRACE(absl::StrCat("again ", static_cast<int>(again)));
    ExpectOracle({.make_model = [again] { return MakeMixtures(again); },
                  .train = train,
                  .num_steps = 6,
                  .learning_rate = 0.05},
                 {2, 4});
  }
}

TEST(ExpertsCases, Use02ExpertsAreRunAgain) {
  ExpectMixtures([](Module& model, Pass& pass) {
    pass.Backward(MixtureLoss(model, MixtureInput(pass.rank(), pass.step())));
  });
}

TEST(ExpertsCases, Use02ForwardWithoutGradientsBeforeTheBackward) {
  ExpectMixtures([](Module& model, Pass& pass) {
    const Variable loss =
        MixtureLoss(model, MixtureInput(pass.rank(), pass.step()));
    {
      const NoGrad no_grad;
      Case(model)(MixtureInput(pass.rank(), pass.step() + 1));
    }
    pass.Backward(loss);
  });
}

// GRD-09
TEST(ExpertsCases, Use02TwoForwardsThenTwoBackwards) {
  for (const bool last_first : {false, true}) {
    ExpectMixtures([last_first](Module& model, Pass& pass) {
      Variable a = MixtureLoss(model, MixtureInput(pass.rank(), pass.step()));
      Variable b =
          MixtureLoss(model, MixtureInput(pass.rank(), pass.step() + 3));
      if (last_first) std::swap(a, b);
      pass.Backward(a);
      pass.Backward(b);
    });
  }
}

// GRD-09. Ranks choose differently twice, and one backward takes both.
TEST(ExpertsCases, Use02OneBackwardOverTwoForwards) {
  ExpectMixtures([](Module& model, Pass& pass) {
    const Variable a =
        MixtureLoss(model, MixtureInput(pass.rank(), pass.step()));
    const Variable b =
        MixtureLoss(model, MixtureInput(pass.rank(), pass.step() + 3));
    pass.Backward(functions::Add(a, b));
  });
}

// Units are held for the backwards of two forwards, and no longer than that.
TEST(ExpertsCases, Use02AStepWithOneForwardHoldsNothing) {
  Mode mode = PerParameter();
  mode.options.auto_wrap_policy = WrapByClass{{"Layer"}};
  const auto after = [&](Module& model, FullyShardedModule& sharded) {
    const auto num_gathered_last = [&](int num_forwards) {
      sharded.ZeroGrad();
      const int rank = sharded.mesh().world()->rank();
      Variable loss = MixtureLoss(model, MixtureInput(rank, 0));
      for (int i = 1; i < num_forwards; ++i) {
        loss = functions::Add(loss, MixtureLoss(model, MixtureInput(rank, i)));
      }
      loss.Backward();
      int gathered = 0;
      int most = 0;
      for (const ScheduleStep& s : sharded.schedule().current()) {
        if (!s.backward) continue;
        gathered += s.kind == StepKind::kWait ? 1 : 0;
        gathered -= s.kind == StepKind::kReshard ? 1 : 0;
        most = std::max(most, gathered);
      }
      return most;
    };
    const int one = num_gathered_last(1);
    EXPECT_GT(num_gathered_last(2), one);
    EXPECT_EQ(num_gathered_last(1), one);
  };
  RunSharded({.make_model = [] { return MakeMixtures(Again::kNothing); },
              .train = [](Module&, Pass&) {},
              .num_steps = 0},
             2, mode, after);
}

// GRD-02. Gradients of ranks that chose differently wait unreduced.
TEST(ExpertsCases, Use02AccumulationWithoutReducing) {
  const auto micro_batch = [](Module& model, int rank, int i) {
    return functions::Scale(MixtureLoss(model, MixtureInput(rank, i)), 0.5);
  };
  for (const Mode& mode : AllModes(2)) {
    SCOPED_TRACE(mode.name);
    std::map<std::string, std::vector<double>> gradients[2];
    for (const bool accumulate : {false, true}) {
      const auto after = [&](Module& model, FullyShardedModule& sharded) {
        const int rank = sharded.mesh().world()->rank();
        for (int i = 0; i < 3; ++i) {
          if (accumulate && i < 2) {
            const auto scope = sharded.NoSync();
            micro_batch(model, rank, i).Backward();
          } else {
            micro_batch(model, rank, i).Backward();
          }
        }
      };
      gradients[accumulate] =
          RunSharded(
              {.make_model = [] { return MakeMixtures(Again::kNothing); },
               .train = [](Module&, Pass&) {},
               .num_steps = 0},
              2, mode, after)
              .gradients;
    }
    for (const auto& [name, values] : gradients[0]) {
      ASSERT_EQ(gradients[1].at(name).size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(gradients[1].at(name)[i], values[i],
                    1e-5 * (1 + std::abs(values[i])))
            << name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
