// Activations that are computed again in backward, inside and around units.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/autograd/random_context.h"
#include "runtime/autograd/recompute.h"
#include "runtime/device/allocator.h"
#include "runtime/functions/dropout.h"
#include "runtime/functions/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

constexpr int64_t kWidth = 16;
constexpr int64_t kRows = 64;  // So that activations outweigh the rest.

enum class Place { kNowhere, kInsideUnits, kAroundUnits, kAroundTwoUnits };

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

// A linear layer, curves and dropout; the layers with odd numbers are frozen.
std::shared_ptr<CaseModule> MakeBlock(int number, bool recompute) {
  auto block = MakeLinear(kWidth, kWidth);
  if (number % 2 == 1) block->RequiresGrad(false);
  const std::string name = absl::StrCat("l", number, ".drop");
  const auto body = [name, linear = block->body](const Variable& x) {
    Variable y = linear(x);
    for (int i = 0; i < 3; ++i) {
      y = functions::Gelu(y, functions::GeluKind::kTanh);
    }
    return functions::Dropout(y, 0.25, name);
  };
  block->body = body;
  if (recompute) {
    block->body = [body](const Variable& x) { return Recompute(body, x); };
  }
  return block;
}

std::shared_ptr<CaseModule> MakeStack(Place place) {
  auto model = std::make_shared<CaseModule>("Stack");
  std::vector<std::shared_ptr<CaseModule>> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(model->AddChild(
        absl::StrCat("l", i), MakeBlock(i, place == Place::kInsideUnits)));
  }
  const size_t together = place == Place::kAroundTwoUnits ? 2 : 1;
  const bool around =
      place == Place::kAroundUnits || place == Place::kAroundTwoUnits;
  model->body = [=](const Variable& x) {
    Variable y = x;
    for (size_t i = 0; i < blocks.size(); i += together) {
      // Runs again in backward, so it holds what it uses.
      const auto some = [blocks, i, together](const Variable& z) {
        Variable out = z;
        for (size_t j = i; j < i + together; ++j) out = (*blocks[j])(out);
        return out;
      };
      y = around ? Recompute(some, y) : some(y);
    }
    return y;
  };
  return model;
}

Scenario StackScenario(Place place) {
  return {
      .make_model = [place] { return MakeStack(place); },
      .train =
          [](Module& model, Pass& pass) {
            AllocatorOf(CurrentDevice()).ResetPeak();
            const RandomContextGuard guard(
                {.seed = 3,
                 .step = pass.step(),
                 .first_sample = pass.rank() * kRows});
            const Variable x =
                CaseInput(kRows, kWidth, pass.rank(), pass.step());
            pass.Backward(functions::Scale(SumOfSquares(Case(model)(x)), 1e-3));
          },
      .num_steps = 3,
      .learning_rate = 0.02};
}

int64_t PeakOfActivations() {
  return AllocatorOf(CurrentDevice()).stats().peak(MemoryCategory::kActivation);
}

int64_t CountGathers(FullyShardedModule& sharded, bool prefetch) {
  int64_t n = 0;
  for (const ScheduleStep& step : sharded.schedule().current()) {
    const bool counts = step.kind == StepKind::kGather &&
                        (!prefetch || (step.prefetch && step.backward));
    if (counts) ++n;
  }
  return n;
}

// J.40: what runs again is gathered as often as what does not, and ahead of
// its use.
TEST(RecomputeCases, ComputingAgainGathersNoMore) {
  for (const Mode& mode : AllModes(2)) {
    std::map<Place, int64_t> gathers;
    std::map<Place, int64_t> ahead;
    for (const Place place : {Place::kNowhere, Place::kInsideUnits,
                              Place::kAroundUnits, Place::kAroundTwoUnits}) {
      RunSharded(StackScenario(place), 2, mode,
                 [&](Module&, FullyShardedModule& sharded) {
                   if (sharded.mesh().world()->rank() != 0) return;
                   gathers[place] = CountGathers(sharded, false);
                   ahead[place] = CountGathers(sharded, true);
                 });
      SCOPED_TRACE(absl::StrCat(mode.name, " ", static_cast<int>(place)));
      EXPECT_EQ(gathers[place], gathers[Place::kNowhere]);
      // Of two units, one can be gathered ahead.
      const int together = place == Place::kAroundTwoUnits ? 2 : 1;
      EXPECT_GE(ahead[place], ahead[Place::kNowhere] / together);
    }
  }
}

// J.96: no bit of losses, gradients and parameters changes, nor a name; and
// activations take less memory.
TEST(RecomputeCases, ComputingAgainChangesNothingButMemory) {
  const Outcome oracle = RunOracle(StackScenario(Place::kNowhere), 2);
  for (const Mode& mode : AllModes(2)) {
    std::vector<int64_t> plain_peak(2);
    const Outcome plain = RunSharded(
        StackScenario(Place::kNowhere), 2, mode,
        [&](Module&, FullyShardedModule& sharded) {
          plain_peak[sharded.mesh().world()->rank()] = PeakOfActivations();
        });
    ExpectSame(plain, oracle, 1e-5);
    for (const Place place :
         {Place::kInsideUnits, Place::kAroundUnits, Place::kAroundTwoUnits}) {
      SCOPED_TRACE(absl::StrCat(mode.name, " ", static_cast<int>(place)));
      const Outcome outcome = RunSharded(
          StackScenario(place), 2, mode,
          [&](Module&, FullyShardedModule& sharded) {
            ExpectNothingGathered(sharded);
            EXPECT_LT(PeakOfActivations(),
                      plain_peak[sharded.mesh().world()->rank()] * 3 / 4);
          });
      EXPECT_EQ(outcome.losses, plain.losses);
      EXPECT_TRUE(outcome.gradients == plain.gradients);
      EXPECT_TRUE(outcome.parameters == plain.parameters);
    }
  }
}

}  // namespace
}  // namespace tessera
