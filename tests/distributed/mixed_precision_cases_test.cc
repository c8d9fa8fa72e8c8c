// Types of parameters, gradients, buffers, inputs and the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/recording_communicator.h"
#include "kernels/status.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/functions/norm.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/grad_scaler.h"
#include "runtime/optim/sgd.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

CaseModule& Case(Module& module) { return static_cast<CaseModule&>(module); }

Mode InBFloat16(Mode mode) {
  mode.options.mixed_precision.param_dtype = DType::kBFloat16;
  mode.options.mixed_precision.reduce_dtype = DType::kFloat32;
  return mode;
}

// A module with buffers of three types.
std::shared_ptr<CaseModule> MakeWithBuffers() {
  auto module = MakeLinear(3, 3);
  module->AddBuffer("running_mean", ops::Full({3}, 1.0 + 0x1p-20));
  module->AddBuffer("count", Tensor::FromVector(std::vector<int64_t>{3}, {1}));
  module->AddBuffer("mask",
                    Tensor::FromVector(std::vector<bool>{true, false}, {2}));
  return module;
}

Scenario BufferScenario() {
  return {.make_model =
              [] {
                auto model = std::make_shared<CaseModule>("Model");
                auto a = model->AddChild("a", MakeWithBuffers());
                auto b = model->AddChild("b", MakeWithBuffers());
                model->body = [a, b](const Variable& x) {
                  return (*b)((*a)(x));
                };
                return model;
              },
          .train =
              [](Module& model, Pass& pass) {
                const Variable x = CaseInput(2, 3, pass.rank(), pass.step());
                pass.Backward(
                    SumOf(functions::Cast(Case(model)(x), DType::kFloat32)));
              },
          .num_steps = 1};
}

std::map<std::string, DType> BufferTypes(Module& model) {
  std::map<std::string, DType> types;
  for (const NamedBuffer& b : model.NamedBuffers()) {
    types[b.name] = b.variable.dtype();
  }
  return types;
}

// MIX-06: statistics and counters keep their types as well.
TEST(MixedPrecisionCases, Mix01Mix06BuffersKeepTheirTypeUnlessAsked) {
  for (Mode mode : {InBFloat16(FullShard()), InBFloat16(PerParameter())}) {
    RunSharded(BufferScenario(), 2, mode,
               [&](Module& model, FullyShardedModule&) {
                 const auto types = BufferTypes(model);
                 EXPECT_EQ(types.at("a.running_mean"), DType::kFloat32);
                 EXPECT_EQ(types.at("a.count"), DType::kInt64);
                 EXPECT_EQ(types.at("a.mask"), DType::kBool);
               });
  }
}

TEST(MixedPrecisionCases, Mix01FloatingBuffersAreCastWhenAsked) {
  Mode mode = InBFloat16(FullShard());
  mode.options.mixed_precision.buffer_dtype = DType::kBFloat16;
  mode.options.ignored_patterns = {"b"};
  Scenario scenario = BufferScenario();
  scenario.num_steps = 0;
  RunSharded(scenario, 2, mode, [&](Module& model, FullyShardedModule&) {
    const auto types = BufferTypes(model);
    EXPECT_EQ(types.at("a.running_mean"), DType::kBFloat16);
    EXPECT_EQ(types.at("a.count"), DType::kInt64);
    EXPECT_EQ(types.at("a.mask"), DType::kBool);
    EXPECT_EQ(types.at("b.running_mean"), DType::kFloat32) << "ignored";
  });
}

// One weight of 1; its gradient on rank r is `of_rank(r, part)`.
Scenario OneWeight(int num_parts,
                   std::function<double(int rank, int part)> gradient) {
  return {.make_model =
              [] {
                auto model = std::make_shared<CaseModule>("One");
                const Variable w = model->AddParameter("w", {1});
                model->body = [w](const Variable& x) {
                  return functions::Mul(x, w);
                };
                return model;
              },
          .train =
              [num_parts, gradient = std::move(gradient)](Module& model,
                                                          Pass& pass) {
                for (int part = 0; part < num_parts; ++part) {
                  const Variable x(ops::Full({1}, gradient(pass.rank(), part)));
                  const Variable y = Case(model)(x);
                  pass.Backward(SumOf(functions::Cast(y, DType::kFloat32)));
                }
              },
          .num_steps = 1};
}

// A running bfloat16 sum of ones would stay at 256: 8 ranks, 128 times.
TEST(MixedPrecisionCases, Mix03OnesOfBFloat16AddUpTo1024) {
  const Scenario scenario = OneWeight(128, [](int, int) { return 1.0; });
  for (Mode mode : AllModes(8)) {
    mode.options.mixed_precision.param_dtype = DType::kBFloat16;
    mode.options.mixed_precision.reduce_dtype = DType::kBFloat16;
    mode.options.gradient_divisor = 1.0;
    const Outcome outcome = RunSharded(scenario, 8, mode);
    EXPECT_EQ(outcome.gradients.at("w")[0], 1024.0) << mode.name;
  }
}

// In one reduction.
TEST(MixedPrecisionCases, Mix03ReductionOfBFloat16SumsInFloat32) {
  const Scenario scenario =
      OneWeight(1, [](int rank, int) { return rank == 0 ? 256.0 : 1.0; });
  for (Mode mode : {FullShard(), PerParameter()}) {
    mode.options.mixed_precision.param_dtype = DType::kBFloat16;
    mode.options.mixed_precision.reduce_dtype = DType::kBFloat16;
    mode.options.gradient_divisor = 1.0;
    const Outcome outcome = RunSharded(scenario, 8, mode);
    // 263 rounds to 264 at the very end, if the result is narrow at all.
    EXPECT_NEAR(outcome.gradients.at("w")[0], 263.0, 1.0) << mode.name;
  }
}

// GRD-06. Two divisions of a narrow reduction, one elsewhere: any divisor.
TEST(MixedPrecisionCases, EveryDivisorDividesOnce) {
  const Scenario scenario = OneWeight(1, [](int, int) { return 1.0; });
  for (const int world_size : {1, 2, 4}) {
    for (Mode mode : AllModes(world_size)) {
      for (const DType reduce : {DType::kFloat16, DType::kFloat32}) {
        for (const double divisor : {0.5, 1.0, 2.5, 4.0, 8.0}) {
          mode.options.mixed_precision.reduce_dtype = reduce;
          mode.options.gradient_divisor = divisor;
          const Outcome outcome = RunSharded(scenario, world_size, mode);
          EXPECT_NEAR(outcome.gradients.at("w")[0], world_size / divisor,
                      1e-3 * world_size / divisor)
              << world_size << " ranks, " << mode.name << ", "
              << DTypeName(reduce) << ", divisor " << divisor;
        }
      }
    }
  }
}

TEST(MixedPrecisionCases, Mix04MicroBatchesAccumulateInFloat32) {
  const Scenario scenario =
      OneWeight(257, [](int, int part) { return part == 0 ? 1.0 : 0x1p-8; });
  for (const Mode& mode :
       {InBFloat16(FullShard()), InBFloat16(PerParameter())}) {
    EXPECT_EQ(RunSharded(scenario, 2, mode).gradients.at("w")[0], 2.0)
        << mode.name;
  }
}

// Two linears and a norm, computed in bfloat16 from float32 masters.
std::shared_ptr<CaseModule> MakeNormed() {
  auto model = std::make_shared<CaseModule>("Normed");
  auto first = model->AddChild("first", MakeLinear(4, 8));
  auto norm = std::make_shared<CaseModule>("Norm");
  const Variable weight = norm->AddParameter("weight", {8});
  const Variable bias = norm->AddParameter("bias", {8});
  norm->body = [weight, bias](const Variable& x) {
    return functions::LayerNorm(x, weight, bias, 1e-5);
  };
  model->AddChild("norm", norm);
  auto last = model->AddChild("last", MakeLinear(8, 2));
  model->body = [=](const Variable& x) {
    return (*last)(
        functions::Gelu((*norm)((*first)(x)), functions::GeluKind::kTanh));
  };
  return model;
}

Scenario NormedScenario() {
  return {.make_model = MakeNormed,
          .train =
              [](Module& model, Pass& pass) {
                const Variable x = CaseInput(2, 4, pass.rank(), pass.step());
                const Variable y =
                    functions::Cast(Case(model)(x), DType::kFloat32);
                pass.Backward(SumOfSquares(y));
              },
          .num_steps = 5,
          .learning_rate = 0.02};
}

// The same without sharding: masters in float32, of which every step computes
// with bfloat16 copies.
std::vector<double> UnshardedLosses(const Scenario& scenario, int world_size) {
  const auto model = MakeNormed();
  FillParameters(*model);
  model->body = [body = model->body](const Variable& x) {
    return body(functions::Cast(x, DType::kBFloat16));
  };
  const std::vector<NamedVariable> parameters = model->NamedParameters();
  std::vector<Tensor> masters;
  for (const NamedVariable& p : parameters)
    masters.push_back(p.variable.data());
  std::vector<double> losses(scenario.num_steps);
  for (int step = 0; step < scenario.num_steps; ++step) {
    model->ZeroGrad();
    for (size_t i = 0; i < masters.size(); ++i) {
      Variable(parameters[i].variable)
          .set_data(ops::Cast(masters[i], DType::kBFloat16));
    }
    for (int rank = 0; rank < world_size; ++rank) {
      Pass pass(rank, step, 1.0 / world_size);
      scenario.train(*model, pass);
      losses[step] += pass.loss() / world_size;
    }
    for (size_t i = 0; i < masters.size(); ++i) {
      ops::AddInto(masters[i], parameters[i].variable.grad(),
                   -scenario.learning_rate);
    }
  }
  return losses;
}

// Of bfloat16, at the size of x.
double UlpAt(double x) { return std::ldexp(1.0, std::ilogb(x) - 7); }

TEST(MixedPrecisionCases, Mix05LossesAreThoseOfUnshardedMixedPrecision) {
  for (const int world_size : {1, 2, 4}) {
    const Outcome expected =
        RunSharded(NormedScenario(), world_size, InBFloat16(FullShard()));
    const std::vector<double> unsharded =
        UnshardedLosses(NormedScenario(), world_size);
    for (size_t step = 0; step < unsharded.size(); ++step) {
      EXPECT_NEAR(expected.losses[step], unsharded[step],
                  UlpAt(unsharded[step]))
          << "step " << step << " on " << world_size << " ranks";
    }
    const Outcome in_float32 = RunOracle(NormedScenario(), world_size);
    EXPECT_NE(expected.losses, in_float32.losses) << "nothing was narrow";
    for (const Mode& mode : AllModes(world_size)) {
      SCOPED_TRACE(absl::StrCat(mode.name, " on ", world_size));
      const Outcome actual =
          RunSharded(NormedScenario(), world_size, InBFloat16(mode));
      EXPECT_EQ(actual.losses, expected.losses);
      EXPECT_EQ(actual.parameters, expected.parameters);
    }
  }
}

// J.90: what is seen in forward, at rest, and as a gradient.
TEST(MixedPrecisionCases, TypesOfViewShardAndGradient) {
  Scenario scenario = NormedScenario();
  scenario.num_steps = 1;
  scenario.make_model = [] {
    auto model = std::make_shared<CaseModule>("Watched");
    auto inner = model->AddChild("inner", MakeLinear(4, 4));
    const Variable weight = inner->own_parameters()[0].variable;
    inner->body = [weight, body = inner->body](const Variable& x) {
      EXPECT_EQ(weight.dtype(), DType::kBFloat16);
      return body(x);
    };
    model->body = [inner](const Variable& x) { return (*inner)(x); };
    return model;
  };
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunSharded(scenario, 2, InBFloat16(mode),
               [&](Module& model, FullyShardedModule&) {
                 for (const NamedVariable& p : model.NamedParameters()) {
                   EXPECT_EQ(p.variable.dtype(), DType::kFloat32) << p.name;
                   EXPECT_EQ(p.variable.grad().dtype(), DType::kFloat32);
                 }
               });
  }
}

// Bytes of each collective of a step of rank 0, of a unit of 256 parameters.
std::map<std::string, int64_t> BytesOnTheWire(const Mode& mode) {
  std::map<std::string, int64_t> bytes;
  RunRanks(4, [&](const std::shared_ptr<Communicator>& inner) {
    const auto world = std::make_shared<RecordingCommunicator>(inner);
    const auto model = MakeLinear(16, 16, /*bias=*/false);
    FillParameters(*model);
    const auto sharded = OrThrow(FullyShard(
        *model, OrThrow(DeviceMesh::Create(world, mode.mesh)), mode.options));
    world->recording().Clear();
    const Variable y = (*model)(CaseInput(2, 16, world->rank(), 0));
    SumOf(functions::Cast(y, DType::kFloat32)).Backward();
    if (world->rank() > 0) return;
    for (const RecordedCollective& c : world->recording().entries()) {
      if (c.operation == Operation::kBarrier) continue;
      bytes[OperationName(c.operation)] = c.num_bytes;
    }
  });
  return bytes;
}

// J.90: parameters travel in the type that they are computed with, gradients in
// that of the reduction, and sums over a shard group in float32.
TEST(MixedPrecisionCases, TypesOnTheWire) {
  for (const DType param : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType reduce : {DType::kFloat32, DType::kFloat16}) {
      for (Mode mode : AllModes(4)) {
        SCOPED_TRACE(absl::StrCat(mode.name, ", ", DTypeName(param), ", ",
                                  DTypeName(reduce)));
        mode.options.mixed_precision.param_dtype = param;
        mode.options.mixed_precision.reduce_dtype = reduce;
        const auto bytes = BytesOnTheWire(mode);
        const bool whole = !bytes.contains("ReduceScatter");
        if (bytes.contains("AllGather")) {
          EXPECT_EQ(bytes.at("AllGather"), 256 * ElementBytes(param));
        }
        if (!whole) {
          EXPECT_EQ(bytes.at("ReduceScatter"), 256 * ElementBytes(reduce));
        }
        const int64_t flag = ElementBytes(DType::kInt64);
        if (whole) {
          EXPECT_EQ(bytes.at("AllReduce"), 256 * ElementBytes(reduce) + flag);
        } else if (bytes.contains("AllReduce")) {
          EXPECT_EQ(bytes.at("AllReduce"), 128 * 4 + flag);
        }
      }
    }
  }
}

// J.91: for optimizers of one's own. What accumulates is rounded once.
TEST(MixedPrecisionCases, GradientsCanBeKeptNarrow) {
  const Scenario scenario =
      OneWeight(2, [](int, int part) { return part == 0 ? 1.0 : 0x1p-8; });
  for (Mode mode : AllModes(2)) {
    mode = InBFloat16(mode);
    mode.options.mixed_precision.keep_low_precision_grads = true;
    SCOPED_TRACE(mode.name);
    Scenario two = scenario;
    two.num_steps = 1;
    const Outcome outcome =
        RunSharded(two, 2, mode, [](Module& model, FullyShardedModule&) {
          const NamedVariable p = model.NamedParameters()[0];
          EXPECT_EQ(p.variable.dtype(), DType::kFloat32);
          if (p.variable.shape().num_elements() == 0) return;
          EXPECT_EQ(p.variable.grad().dtype(), DType::kBFloat16);
        });
    EXPECT_EQ(outcome.gradients.at("w")[0], 1.0);
  }
}

// J.92: 1 + 2^-8 is no bfloat16. On a float32 wire the mean is exact.
TEST(MixedPrecisionCases, ReducingInFloat32IsBetter) {
  Scenario scenario = OneWeight(1, [](int, int) { return 1.0; });
  scenario.train = [](Module& model, Pass& pass) {
    const auto part = [&model](double gradient) {
      const Variable x(ops::Full({1}, gradient));
      return SumOf(functions::Cast(Case(model)(x), DType::kFloat32));
    };
    pass.Backward(functions::Add(part(1.0), part(0x1p-8)));
  };
  for (const Mode& mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    Mode wide = InBFloat16(mode);
    EXPECT_EQ(RunSharded(scenario, 4, wide).gradients.at("w")[0], 1 + 0x1p-8);
    Mode narrow = wide;
    narrow.options.mixed_precision.reduce_dtype = DType::kBFloat16;
    EXPECT_EQ(RunSharded(scenario, 4, narrow).gradients.at("w")[0], 1.0);
  }
}

// J.94: an overflow of one rank, in the shard of another.
TEST(MixedPrecisionCases, OverflowOnOneRankSkipsTheStepOnAll) {
  const Scenario scenario = OneWeight(1, [](int, int) { return 1.0; });
  for (Mode mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    mode.options.mixed_precision.param_dtype = DType::kFloat16;
    mode.options.mixed_precision.reduce_dtype = DType::kFloat32;
    RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
      const std::shared_ptr<Module> model = scenario.make_model();
      ops::Fill(model->NamedParameters()[0].variable.data(), 2.0);
      const auto sharded = OrThrow(FullyShard(
          *model, OrThrow(DeviceMesh::Create(world, mode.mesh)), mode.options));
      const ShardedParameter& w = sharded->Parameters()[0];
      Sgd optimizer({{{{w.name, w.variable}}, {.lr = 0.5}}});
      Stream stream(CurrentDevice(), "flag", StreamMode::kInline);
      GradScaler scaler(
          {.init_scale = 4, .growth_interval = 2}, [&](Tensor& found_inf) {
            const Tensor flag[] = {found_inf};
            OrThrow(
                world->AllReduce(flag, {ReduceOp::kMax}, stream, "found_inf"));
          });
      const double scales[] = {2, 2, 4};
      const double values[] = {2.0, 1.5, 1.0};
      for (int step = 0; step < 3; ++step) {
        const bool overflow = step == 0 && world->rank() == 3;
        sharded->ZeroGrad();
        const Variable x(ops::Full({1}, overflow ? 65504.0 : 1.0));
        const Variable y = functions::Cast(Case(*model)(x), DType::kFloat32);
        scaler.Scale(SumOf(y)).Backward();
        EXPECT_EQ(scaler.Step(optimizer), step > 0) << "rank " << world->rank();
        scaler.Update();
        EXPECT_EQ(scaler.scale(), scales[step]);
        sharded->ForEachFullParameter(
            [&](const std::string&, const Tensor& whole) {
              EXPECT_EQ(whole.ToDoubles()[0], values[step]);
            });
      }
    });
  }
}

// A struct of a float and an integer tensor, as a model might take it.
struct Batch {
  Variable values;
  Variable ids;
  template <typename F>
  void VisitVariables(F&& f) {
    tessera::VisitVariables(values, f);
    tessera::VisitVariables(ids, f);
  }
};

class TakesBatch : public Module {
 public:
  TakesBatch() : Module("TakesBatch") {
    weight_ = RegisterParameter("weight", Shape{2, 3});
  }
  Variable operator()(const Batch& batch) {
    return Call(
        [this](const Batch& b) {
          seen_ = {b.values.dtype(), b.ids.dtype()};
          return functions::Linear(b.values, weight_, Variable());
        },
        batch);
  }
  const std::vector<DType>& seen() const { return seen_; }

 private:
  Variable weight_;
  std::vector<DType> seen_;
};

// J.93
TEST(MixedPrecisionCases, Mix07InputsInStructsAreCast) {
  const Scenario scenario{
      .make_model = [] { return std::make_shared<TakesBatch>(); },
      .train =
          [](Module& module, Pass& pass) {
            auto& model = static_cast<TakesBatch&>(module);
            const Batch batch{
                CaseInput(2, 3, pass.rank(), pass.step()),
                Variable(Tensor::FromVector(std::vector<int64_t>{1}, {1}))};
            pass.Backward(
                SumOf(functions::Cast(model(batch), DType::kFloat32)));
            EXPECT_THAT(model.seen(),
                        testing::ElementsAre(DType::kBFloat16, DType::kInt64));
          },
      .num_steps = 1};
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunSharded(scenario, 2, InBFloat16(mode));
  }
}

}  // namespace
}  // namespace tessera
