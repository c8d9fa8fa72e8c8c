// Whatever the timing, events order every pair of accesses that must be
// ordered: without any one of the engine's waits a test here fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "runtime/device/access_checker.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kWidth = 16;

struct Features {
  bool frozen = false;     // A unit, and a part of another.
  bool low_dtype = false;  // A parameter of another dtype than its unit's.
  bool ignored = false;    // A parameter kept out of sharding.
};

struct Model {
  std::shared_ptr<CaseModule> root;
  std::shared_ptr<bool> skip = std::make_shared<bool>(false);  // The last unit.
};

// Units of several sizes, such that buffers of one purpose have the size of
// another unit's for another purpose; biases that travel packed.
Model MakeModel(const Features& features) {
  Model model;
  auto root = model.root = std::make_shared<CaseModule>("Root");
  const Variable first = root->AddParameter("first", {kWidth, kWidth});
  const Variable ignored = root->AddParameter("ignored", {kWidth, kWidth});
  std::vector<std::shared_ptr<CaseModule>> layers = {
      MakeLinear(kWidth, 2 * kWidth, false),
      MakeLinear(2 * kWidth, kWidth, false), MakeLinear(kWidth, kWidth, true),
      MakeLinear(kWidth, kWidth, false), MakeLinear(kWidth, kWidth, false)};
  for (size_t i = 0; i < layers.size(); ++i) {
    root->AddChild(absl::StrCat("layer", i), layers[i]);
  }
  Variable low;
  if (features.low_dtype) {
    low = layers[2]->AddParameter("low", {kWidth, kWidth}, DType::kBFloat16);
  }
  root->body = [=, skip = model.skip](const Variable& x) {
    Variable y = functions::Linear(x, first, Variable());
    for (size_t i = 0; i < layers.size(); ++i) {
      if (i + 1 == layers.size() && *skip) continue;
      y = (*layers[i])(y);
    }
    if (!features.ignored) return y;
    return functions::Linear(y, functions::Cast(ignored, y.dtype()),
                             Variable());
  };
  if (low.defined()) {
    layers[2]->body = [low, body = layers[2]->body](const Variable& x) {
      const Variable y = body(x);
      return functions::Linear(y, functions::Cast(low, y.dtype()), Variable());
    };
  }
  FillParameters(*root);
  for (NamedVariable p : root->NamedParameters()) {
    if (features.frozen && (p.name == "layer1.weight" ||
                            p.name == "layer2.bias" || p.name == "first")) {
      p.variable.set_requires_grad(false);
    }
  }
  return model;
}

void Backward(const Model& model, int step) {
  Variable y = (*model.root)(CaseInput(3, kWidth, 0, step));
  SumOfSquares(functions::Cast(y, DType::kFloat32)).Backward();
}

struct Case {
  std::string name;
  FullyShardOptions options;
  MeshShape mesh;
};

// For the next forward to take over.
void ReplaceAValue(const FullyShardedModule& sharded) {
  for (const ShardedParameter& p : sharded.Parameters()) {
    if (p.name != "layer3.weight") continue;
    Variable v = p.variable;
    v.set_data(ops::Scale(v.data(), 0.5));
  }
}

// Accumulation, clipping, a descent, an inference; a value that is replaced;
// and the whole parameters.
void Train(const std::shared_ptr<Communicator>& world, const Case& c,
           const Features& features) {
  SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
  {
    const Model model = MakeModel(features);
    auto mesh = OrThrow(DeviceMesh::Create(world, c.mesh));
    auto sharded = OrThrow(FullyShard(*model.root, mesh, c.options));
    for (int step = 0; step < 3; ++step) {
      sharded->ZeroGrad();
      if (step == 1) {
        const auto scope = sharded->NoSync();
        Backward(model, step);
      }
      Backward(model, step);
      if (step != 2) sharded->ClipGradNorm(1e-3);
      if (step == 1) ReplaceAValue(*sharded);
      Descend(*model.root, 1e-3);
      NoGrad no_grad;
      (*model.root)(CaseInput(3, kWidth, 0, step));
    }
    double total = 0;
    sharded->ForEachFullParameter([&](const std::string&, const Tensor& whole) {
      const Tensor twice = ops::Add(whole, whole);
      total += twice.ToDoubles()[0];
    });
    EXPECT_FALSE(std::isnan(total));
  }
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
}

Case Version1(ShardingStrategy strategy, const MeshShape& mesh = {}) {
  Case c;
  c.name = absl::StrCat(ShardingStrategyName(strategy), " ", mesh.ToString());
  c.options.fsdp_version = 1;
  c.options.sharding_strategy = strategy;
  c.mesh = mesh;
  return c;
}

Case Version2(ReshardAfterForward reshard, const MeshShape& mesh = {}) {
  Case c;
  c.name = absl::StrCat("version 2 ", mesh.ToString());
  c.options.fsdp_version = 2;
  c.options.reshard_after_forward = reshard;
  c.mesh = mesh;
  return c;
}

std::vector<Case> Cases() {
  const MeshShape grid{2, 2, true};
  std::vector<Case> cases = {
      Version1(ShardingStrategy::kFullShard),
      Version1(ShardingStrategy::kShardGradOp),
      Version1(ShardingStrategy::kNoShard),
      Version1(ShardingStrategy::kHybridShard, grid),
      Version1(ShardingStrategy::kHybridShardZero2, grid),
      Version2(true),
      Version2(false),
      Version2(2),
      Version2(true, grid),
      Version2(true, {4, 1, true})};
  for (Case& c : cases) {
    c.options.auto_wrap_policy = WrapByClass{{"Layer"}};
    c.options.ignored_patterns = {"ignored"};
    c.options.forward_prefetch = true;
  }
  return cases;
}

void SetDType(MixedPrecision& mixed, DType dtype) {
  if (dtype == DType::kFloat32) return;
  mixed.param_dtype = dtype;
  mixed.reduce_dtype = dtype;
}

TEST(WaitsTest, EventsOrderAllAccesses) {
  for (Case c : Cases()) {
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const bool limit : {true, false}) {
        for (const bool plain : {true, false}) {
          if (plain && dtype == DType::kFloat16) continue;  // As bfloat16.
          const Features features{
              .frozen = !plain, .low_dtype = !plain, .ignored = !plain};
          c.options.mixed_precision = {};
          SetDType(c.options.mixed_precision, dtype);
          c.options.limit_all_gathers = limit;
          AccessChecker::Enable(true);
          RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
            Train(world, c, features);
          });
          EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty())
              << c.name << ", " << DTypeName(dtype) << ", limit " << limit
              << ", frozen " << features.frozen;
          AccessChecker::Enable(false);
        }
      }
    }
  }
}

// All accesses of `body` are ordered, on two ranks that run ahead of compute.
void ExpectOrdered(const RankFunction& body) {
  AccessChecker::Enable(true);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
    body(world);
    SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  });
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  AccessChecker::Enable(false);
}

// The last unit is gathered ahead and then not run; no later collective orders
// the gather before the next write of the shard.
TEST(WaitsTest, AGatherThatNobodyUsedEndsBeforeTheShardIsWritten) {
  for (const bool inference : {false, true}) {
    SCOPED_TRACE(inference);
    ExpectOrdered([&](const std::shared_ptr<Communicator>& world) {
      const Model model = MakeModel({});
      Case c = Cases()[5];
      auto mesh = OrThrow(DeviceMesh::Create(world, c.mesh));
      auto sharded = OrThrow(FullyShard(*model.root, mesh, c.options));
      Backward(model, 0);
      *model.skip = true;
      if (inference) {
        NoGrad no_grad;
        (*model.root)(CaseInput(3, kWidth, 0, 1));
      } else {
        const auto scope = sharded->NoSync();
        Backward(model, 1);
      }
      ASSERT_OK(sharded->SetFullParameter("layer4.weight",
                                          ops::Ones({kWidth, kWidth})));
      *model.skip = false;
      Backward(model, 2);
    });
  }
}

// Its reductions are over before anyone reads or writes where they write.
TEST(WaitsTest, WhatAFailedBackwardReducesEndsBeforeTheNext) {
  for (const Case& c : {Cases()[0], Cases()[2]}) {
    ExpectOrdered([&](const std::shared_ptr<Communicator>& world) {
      const Model model = MakeModel({});
      auto mesh = OrThrow(DeviceMesh::Create(world, c.mesh));
      auto sharded = OrThrow(FullyShard(*model.root, mesh, c.options));
      Backward(model, 0);
      Module& layer = *model.root->NamedModules()[2].module;
      const int64_t hook = layer.AddPostForwardHook(
          [](Module&, const std::vector<Variable*>& outputs) {
            *outputs[0] = ThrowsInBackward(*outputs[0]);
          });
      EXPECT_THROW(Backward(model, 1), Error);
      layer.RemoveForwardHook(hook);
      (void)sharded->GradNorm();
      model.root->NamedModules()[4].module->ZeroGrad();
      Backward(model, 2);
    });
  }
}

void SleepOnCompute(absl::Duration time) {
  ComputeStream(CurrentDevice()).Enqueue("Sleep", [time] {
    absl::SleepFor(time);
  });
}

// What FullyShard compares and sends is what was queued before it.
TEST(WaitsTest, StartValuesAreThoseQueuedBefore) {
  for (const bool sync : {false, true}) {
    SCOPED_TRACE(sync);
    ExpectOrdered([&](const std::shared_ptr<Communicator>& world) {
      const Model model = MakeModel({});
      for (const NamedVariable& p : model.root->NamedParameters()) {
        ops::Fill(p.variable.data(), 1.0 + world->rank());
      }
      SleepOnCompute(absl::Milliseconds(sync == (world->rank() == 0) ? 30 : 0));
      const double value = sync ? 3.0 + world->rank() : 3.0;
      for (const NamedVariable& p : model.root->NamedParameters()) {
        ops::Fill(p.variable.data(), value);
      }
      Case c = Cases()[5];
      c.options.sync_module_states = sync;
      c.options.shards_in_place = false;  // Which would block in set-up.
      auto mesh = OrThrow(DeviceMesh::Create(world, c.mesh));
      auto sharded = FullyShard(*model.root, mesh, c.options);
      ASSERT_OK(sharded.status());
      (*sharded)->ForEachFullParameter(
          [&](const std::string& name, const Tensor& whole) {
            for (double v : whole.ToDoubles()) ASSERT_EQ(v, 3.0) << name;
          });
    });
  }
}

// Queues work on compute that ends late, and then says so.
void EndLate(const std::shared_ptr<std::atomic<bool>>& ended) {
  ComputeStream(CurrentDevice()).Enqueue("Sleep", [ended] {
    absl::SleepFor(absl::Milliseconds(30));
    *ended = true;
  });
}

// Memory goes back to the system when queued work no longer needs it.
TEST(WaitsTest, MemoryIsReturnedBehindQueuedWork) {
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
    {
      const auto set_up = std::make_shared<std::atomic<bool>>(false);
      const auto step = std::make_shared<std::atomic<bool>>(false);
      std::shared_ptr<CaseModule> model;
      {
        const DeviceGuard meta(kMetaDevice);
        model = MakeMlp({kWidth, kWidth, kWidth});
      }
      Case c = Cases()[5];
      c.options.ignored_patterns = {};
      c.options.param_init_fn = [&](Module& module, const Initializer& init) {
        module.ResetParameters(init);
        EndLate(set_up);
      };
      auto mesh = OrThrow(DeviceMesh::Create(world, c.mesh));
      auto sharded = OrThrow(FullyShard(*model, mesh, c.options));
      EXPECT_TRUE(*set_up);
      SumOfSquares((*model)(CaseInput(3, kWidth, 0, 0))).Backward();
      EndLate(step);
      sharded->ReleaseBuffers();
      EXPECT_TRUE(*step);
    }
    SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  });
}

// Passes gradients through; backward's compute stream stands still there.
class SleepNode final : public Node {
 public:
  const char* name() const override { return "Sleep"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    SleepOnCompute(absl::Milliseconds(30));
    return grads;
  }
};

// Only ranks that are processes have memory in common. Where shards lie in
// place there, a rank's optimizer writes what others read.
class ProcessesTest : public testing::Test {
 protected:
  // `use` reads the weight of a unit late on rank 1, rank 0 then writes its
  // rows. Backward reduces gradients if `sync`.
  template <typename Use>
  static void Run(const Use& use, bool sync = true) {
    RunRankProcesses(
        RankKind::kSharedMemory, 2,
        [&](const std::shared_ptr<Communicator>& world) {
          SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
          auto layer = MakeLinear(kWidth, kWidth, false);
          auto root = std::make_shared<CaseModule>("Root");
          root->AddChild("layer", layer);
          FillParameters(*root);
          FullyShardOptions options;
          options.auto_wrap_policy = WrapByClass{{"Layer"}};
          auto mesh = OrThrow(DeviceMesh::Create(world));
          auto sharded = OrThrow(FullyShard(*root, mesh, options));
          if (!sync) sharded->set_requires_gradient_sync(false);
          const Tensor first = use(*layer, world->rank());
          const std::vector<double> values = first.ToDoubles();
          // Both ranks have written now: the next result is another.
          EXPECT_NE(use(*layer, 0).ToDoubles(), values);
          sharded.reset();
          // Nothing was written yet when the first was made.
          auto plain = MakeLinear(kWidth, kWidth, false);
          FillParameters(*plain);
          EXPECT_EQ(use(*plain, 0).ToDoubles(), values);
          SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
        });
  }
};

// x's gradient, by a use of the weight that asks for no gradient of it: so its
// reduction does not wait for this use.
TEST_F(ProcessesTest, OptimizerWaitsForTheBackwardOfAllRanks) {
  Run([](CaseModule& layer, int rank) {
    const Variable weight = layer.NamedParameters()[0].variable;
    bool detached = true;
    layer.body = [&](const Variable& x) {
      return functions::Linear(x, detached ? weight.Detach() : weight,
                               Variable());
    };
    Variable x(ops::Ones({1, kWidth}));
    x.set_requires_grad(true);
    Variable y = layer(x);
    if (rank == 1) {
      y = Record(y.data(), {y}, [] { return std::make_shared<SleepNode>(); });
    }
    detached = false;
    SumOfSquares(layer(y)).Backward();
    Descend(layer, 0.5);
    return x.grad();
  });
}

TEST_F(ProcessesTest, OptimizerWaitsForTheInferenceOfAllRanks) {
  Run([](CaseModule& layer, int rank) {
    const Variable x(ops::Ones({1, kWidth}));
    Tensor result;
    {
      NoGrad no_grad;
      if (rank == 1) SleepOnCompute(absl::Milliseconds(30));
      result = layer(x).data();
    }
    const Variable weight = layer.NamedParameters()[0].variable;
    ops::ScaleInPlace(weight.data(), 0.5);
    return result;
  });
}

// Optimizers may go by gradients of an earlier backward.
TEST_F(ProcessesTest, OptimizerWaitsForTheForwardOfAllRanks) {
  Run([](CaseModule& layer, int rank) {
    if (rank == 1) SleepOnCompute(absl::Milliseconds(30));
    const Tensor result = layer(Variable(ops::Ones({1, kWidth}))).data();
    const Variable weight = layer.NamedParameters()[0].variable;
    ops::ScaleInPlace(weight.data(), 0.5);
    return result;
  });
}

TEST_F(ProcessesTest, OptimizerWaitsForABackwardThatDoesNotReduce) {
  const auto use = [](CaseModule& layer, int rank) {
    Variable x(ops::Ones({1, kWidth}));
    x.set_requires_grad(true);
    Variable y = layer(x);
    if (rank == 1) {
      y = Record(y.data(), {y}, [] { return std::make_shared<SleepNode>(); });
    }
    SumOfSquares(layer(y)).Backward();
    const Variable weight = layer.NamedParameters()[0].variable;
    ops::ScaleInPlace(weight.data(), 0.5);
    return x.grad();
  };
  Run(use, /*sync=*/false);
}

// The gathered buffers go with the sharded module, as mappings that the system
// takes back.
TEST_F(ProcessesTest, BuffersLiveUntilQueuedWorkEnds) {
  RunRankProcesses(RankKind::kSharedMemory, 2,
                   [&](const std::shared_ptr<Communicator>& world) {
                     SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
                     auto layer = MakeLinear(kWidth, kWidth, false);
                     FillParameters(*layer);
                     const Variable x(ops::Ones({1, kWidth}));
                     const std::vector<double> expected =
                         (*layer)(x).data().ToDoubles();
                     layer->body = [body = layer->body](const Variable& input) {
                       SleepOnCompute(absl::Milliseconds(30));
                       return body(input);
                     };
                     FullyShardOptions options;
                     options.shards_in_place = false;
                     auto mesh = OrThrow(DeviceMesh::Create(world));
                     auto sharded = OrThrow(FullyShard(*layer, mesh, options));
                     Tensor result;
                     {
                       NoGrad no_grad;
                       result = (*layer)(x).data();
                     }
                     sharded.reset();
                     EXPECT_EQ(result.ToDoubles(), expected);
                     SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
                   });
}

// The checker inside of each process.
TEST_F(ProcessesTest, EventsOrderAllAccesses) {
  for (const size_t index : {0, 1, 5, 6}) {
    const Case c = Cases()[index];
    RunRankProcesses(RankKind::kSharedMemory, 2,
                     [&](const std::shared_ptr<Communicator>& world) {
                       AccessChecker::Enable(true);
                       Train(world, c, {.frozen = true, .ignored = true});
                       EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty())
                           << c.name;
                     });
  }
}

}  // namespace
}  // namespace tessera
