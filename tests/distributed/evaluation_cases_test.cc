// Modules in evaluation mode compute in full precision, if they are asked to.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/functions/elementwise.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"

namespace tessera {
namespace {

constexpr int kRanks = 4;

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

// Two layers, and a buffer of 1 + 2^-20, which no narrow type holds.
std::shared_ptr<CaseModule> MakeModel() {
  auto model = std::make_shared<CaseModule>("Model");
  auto layers = model->AddChild("layers", MakeMlp({4, 6, 5, 2}));
  const Variable scale =
      model->AddBuffer("scale", ops::Full({2}, 1.0 + 0x1p-20));
  model->body = [=](const Variable& x) {
    const Variable y = (*layers)(x);
    return functions::Mul(functions::Cast(y, scale.dtype()), scale);
  };
  FillParameters(*model);
  return model;
}

Variable Input(int rank) { return CaseInput(3, 4, rank, 0); }

std::vector<double> Evaluate(Module& model, int rank) {
  const NoGrad no_grad;
  return Case(model)(Input(rank)).data().ToDoubles();
}

std::vector<Mode> NarrowModes() {
  std::vector<Mode> modes;
  for (Mode mode : AllModes(kRanks)) {
    mode.options.mixed_precision.param_dtype = DType::kBFloat16;
    mode.options.mixed_precision.reduce_dtype = DType::kFloat32;
    if (mode.options.fsdp_version == 1) {
      mode.options.mixed_precision.buffer_dtype = DType::kBFloat16;
    } else {
      mode.options.mixed_precision.output_dtype = DType::kBFloat16;
    }
    mode.options.full_precision_in_eval = true;
    modes.push_back(mode);
  }
  return modes;
}

void RunModes(const std::vector<Mode>& modes,
              const std::function<void(Module&, FullyShardedModule&)>& body) {
  for (const Mode& mode : modes) {
    SCOPED_TRACE(mode.name);
    RunSharded({.make_model = MakeModel,
                .train = [](Module&, Pass&) {},
                .num_steps = 0},
               kRanks, mode, body);
  }
}

int RankOf(FullyShardedModule& sharded) {
  return sharded.mesh().world()->rank();
}

// J.95: bit for bit what a plain model in float32 gives; training goes on in
// bfloat16, before and after.
TEST(EvaluationCases, EvaluationIsThatOfThePlainModel) {
  RunModes(NarrowModes(), [](Module& model, FullyShardedModule& sharded) {
    const int rank = RankOf(sharded);
    const std::vector<double> plain = Evaluate(*MakeModel(), rank);
    const std::vector<double> narrow = Evaluate(model, rank);
    EXPECT_NE(narrow, plain);
    for (int i = 0; i < 2; ++i) {
      model.Eval();
      EXPECT_EQ(Evaluate(model, rank), plain);
      EXPECT_EQ(Case(model)(Input(rank)).dtype(), DType::kFloat32);
      sharded.Reshard();
      ExpectNothingGathered(sharded);
      model.Train();
      EXPECT_EQ(Evaluate(model, rank), narrow);
    }
  });
}

// Gradients of a model in evaluation mode are in full precision too.
TEST(EvaluationCases, BackwardComputesInWhatForwardDid) {
  for (Mode mode : NarrowModes()) {
    SCOPED_TRACE(mode.name);
    const auto gradients = [](Mode with, bool eval) {
      const auto after = [&](Module& model, FullyShardedModule& sharded) {
        if (eval) model.Eval();
        SumOfSquares(functions::Cast(Case(model)(Input(RankOf(sharded))),
                                     DType::kFloat32))
            .Backward();
      };
      return RunSharded({.make_model = MakeModel,
                         .train = [](Module&, Pass&) {},
                         .num_steps = 0},
                        kRanks, with, after)
          .gradients;
    };
    Mode plain = mode;
    plain.options.mixed_precision = {};
    plain.options.full_precision_in_eval = false;
    EXPECT_EQ(gradients(mode, true), gradients(plain, true));
    EXPECT_NE(gradients(mode, false), gradients(plain, true));
  }
}

// An evaluation between forward and backward changes no gradient, and neither
// does the mode in which backward finds the model.
TEST(EvaluationCases, ABackwardWaitsWhileTheModelIsEvaluated) {
  RunModes(NarrowModes(), [](Module& model, FullyShardedModule& sharded) {
    const int rank = RankOf(sharded);
    std::vector<std::vector<double>> seen;
    for (const bool evaluate : {false, true}) {
      sharded.ZeroGrad();
      const Variable loss = SumOfSquares(
          functions::Cast(Case(model)(Input(rank)), DType::kFloat32));
      if (evaluate) {
        model.Eval();
        EXPECT_EQ(Evaluate(model, rank), Evaluate(*MakeModel(), rank));
      }
      loss.Backward();
      model.Train();
      for (const ShardedParameter& p : sharded.Parameters()) {
        seen.push_back(p.variable.grad().ToDoubles());
      }
    }
    const size_t n = seen.size() / 2;
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(seen[i], seen[n + i]);
    ExpectNothingGathered(sharded);
  });
}

// What a narrow buffer was set to counts; what was not written is not rounded.
TEST(EvaluationCases, BuffersAreWhatWasLastWritten) {
  Mode mode = NarrowModes()[0];
  RunModes({mode}, [](Module& model, FullyShardedModule& sharded) {
    const Variable scale = model.NamedBuffers()[0].variable;
    Module& inside = *model.NamedModules()[1].module;
    const auto in_evaluation = [&] {
      model.Eval();
      std::vector<double> values;
      const int64_t hook = inside.AddPostForwardHook(
          [&](Module&, const std::vector<Variable*>&) {
            EXPECT_EQ(scale.dtype(), DType::kFloat32);
            values = scale.data().ToDoubles();
          });
      Evaluate(model, RankOf(sharded));
      inside.RemoveForwardHook(hook);
      model.Train();
      EXPECT_EQ(scale.dtype(), DType::kBFloat16);
      return values[0];
    };
    EXPECT_EQ(in_evaluation(), 1.0 + 0x1p-20);
    ops::Fill(scale.data(), 3.0);
    EXPECT_EQ(in_evaluation(), 3.0);
  });
}

TEST(EvaluationCases, TheEnvironmentAsksToo) {
  std::vector<Mode> modes = NarrowModes();
  for (Mode& mode : modes) mode.options.full_precision_in_eval = false;
  for (const char* value : {"1", "0"}) {
    setenv("FSDP_USE_FULL_PREC_IN_EVAL", value, /*overwrite=*/1);
    const bool asked = std::string(value) == "1";
    RunModes(modes, [&](Module& model, FullyShardedModule& sharded) {
      model.Eval();
      const int rank = RankOf(sharded);
      EXPECT_EQ(Evaluate(model, rank) == Evaluate(*MakeModel(), rank), asked);
    });
  }
  unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
}

TEST(EvaluationCases, WithoutCastsItComesToNothingAndSaysSo) {
  Mode mode = PerParameter();
  mode.options.full_precision_in_eval = true;
  RunModes({mode}, [](Module&, FullyShardedModule& sharded) {
    ASSERT_EQ(sharded.warnings().size(), 1u);
    EXPECT_NE(sharded.warnings()[0].find("full_precision_in_eval"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace tessera
