// What parameters and buffers hold when sharding has ended, and what it took.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/initializer.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

absl::StatusOr<std::unique_ptr<FullyShardedModule>> Shard(Module& model,
                                                          const World& world,
                                                          const Mode& mode) {
  absl::StatusOr<std::shared_ptr<DeviceMesh>> mesh =
      DeviceMesh::Create(world, mode.mesh);
  if (!mesh.ok()) return mesh.status();
  return FullyShard(model, *mesh, mode.options);
}

Values Gathered(FullyShardedModule& sharded) {
  Values values;
  sharded.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        values[name] = whole.ToDoubles();
      });
  for (const NamedBuffer& b : sharded.module().NamedBuffers()) {
    values[b.name] = b.variable.data().ToDoubles();
  }
  return values;
}

std::shared_ptr<CaseModule> OnMeta(const std::vector<int64_t>& widths) {
  const DeviceGuard meta(kMetaDevice);
  return MakeMlp(widths);
}

// Fills all values with those of rank 0, or with something else elsewhere.
void FillForRank(Module& module, int rank) {
  FillParameters(module);
  if (rank == 0) return;
  for (const NamedVariable& p : module.NamedParameters()) {
    ops::Fill(p.variable.data(), 100.0 + rank);
  }
  for (const NamedBuffer& b : module.NamedBuffers()) {
    ops::Fill(b.variable.data(), 50.0 + rank);
  }
}

// J.79: the values do not depend on ranks, strategy or units.
TEST(StartValuesCases, DeferredValuesAreThoseOfOneProcess) {
  const auto plain = MakeMlp({5, 7, 3});
  InitializeParameters(*plain, /*seed=*/9);
  Values expected;
  for (const NamedVariable& p : plain->NamedParameters()) {
    expected[p.name] = p.variable.data().ToDoubles();
  }
  for (const int world_size : {1, 3, 4}) {
    for (Mode mode : AllModes(world_size)) {
      mode.options.seed = 9;
      RunRanks(world_size, [&](const World& world) {
        AllocatorOf(CurrentDevice()).SetPoison(true);
        const auto model = OnMeta({5, 7, 3});
        const auto sharded = OrThrow(Shard(*model, world, mode));
        EXPECT_EQ(Gathered(*sharded), expected) << mode.name;
      });
    }
  }
}

// 32 layers of 128 x 128 on 4 ranks.
TEST(StartValuesCases, Init01DeferredInitHoldsShardsAndAUnit) {
  const std::vector<int64_t> widths(33, 128);
  constexpr int64_t kLayerBytes = (128 * 128 + 128) * 4;
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunRanks(4, [&](const World& world) {
      Allocator& allocator = AllocatorOf(CurrentDevice());
      allocator.ReleaseCache();
      allocator.ResetPeak();
      const int64_t before = allocator.stats().current_bytes;
      const auto model = OnMeta(widths);
      const auto sharded = OrThrow(Shard(*model, world, mode));
      const int64_t shards = 32 * (kLayerBytes / 4 + 1024);
      EXPECT_LT(allocator.stats().peak_bytes - before, shards + 2 * kLayerBytes)
          << mode.name;
    });
  }
}

// Ranks that are threads, and ranks that have memory in common: there shards
// are made by a collective.
constexpr RankKind kSetUpKinds[] = {RankKind::kThread, RankKind::kSharedMemory};

void ExpectRuleIsMissed(RankKind kind) {
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunRanksAs(kind, 2, [&](const World& world) {
      const Device device = CurrentDevice();
      const DeviceGuard meta(kMetaDevice);
      auto model = std::make_shared<CaseModule>("Model");
      model->AddChild("good", MakeLinear(3, 3));
      class NoRule : public Module {
       public:
        NoRule() : Module("NoRule") { RegisterParameter("gain", Shape{3, 2}); }
        void ResetParameters(const Initializer&) override {}
      };
      model->AddChild("norm", std::make_shared<NoRule>());
      const DeviceGuard real(device);
      const auto sharded = Shard(*model, world, mode);
      EXPECT_THAT(sharded, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "no start value was set for norm.gain"));
    });
  }
}

TEST(StartValuesCases, Init06ParameterWithoutARuleIsNamed) {
  for (const RankKind kind : kSetUpKinds) ExpectRuleIsMissed(kind);
}

// In any unit, on every kind of mesh: all ranks have its reason at once.
TEST(StartValuesCases, AnErrorOfOneRankInSetUpIsEveryRanks) {
  for (const RankKind kind : kSetUpKinds) {
    RunRanksAs(kind, 4, [&](const World& world) {
      for (Mode mode : AllModes(4)) {
        for (const int failing : {0, 2}) {
          SCOPED_TRACE(absl::StrCat(mode.name, ", unit ", failing));
          int unit = 0;
          mode.options.param_init_fn = [&](Module& module,
                                           const Initializer& init) {
            if (world->rank() == 1 && unit++ == failing) {
              throw Error(absl::DataLossError("the disk is full"));
            }
            module.ResetParameters(init);
          };
          const auto model = OnMeta({5, 7, 3, 4});
          EXPECT_THAT(Shard(*model, world, mode),
                      StatusIs(absl::StatusCode::kDataLoss,
                               "rank 1: the disk is full"));
        }
      }
    });
  }
}

// J.80, INIT-04, INIT-09: rank 0's values, buffers too, on grids as well.
TEST(StartValuesCases, Init04Init08Init09SyncTakesRankZerosValues) {
  const auto make_model = [] {
    auto model = MakeMlp({4, 5, 2});
    model->AddBuffer("running_mean", ops::Full({3}, 0.25));
    model->AddBuffer("scratch", ops::Full({2}, 0.5), /*persistent=*/false);
    return model;
  };
  const auto plain = make_model();
  FillParameters(*plain);
  Values expected;
  for (const NamedVariable& p : plain->NamedParameters()) {
    expected[p.name] = p.variable.data().ToDoubles();
  }
  expected["running_mean"] = {0.25, 0.25, 0.25};
  expected["scratch"] = {0.5, 0.5};
  for (Mode mode : AllModes(4)) {
    mode.options.sync_module_states = true;
    RunRanks(4, [&](const World& world) {
      AllocatorOf(CurrentDevice()).SetPoison(true);
      const auto model = make_model();
      FillForRank(*model, world->rank());
      const auto sharded = OrThrow(Shard(*model, world, mode));
      EXPECT_EQ(Gathered(*sharded), expected) << mode.name;
    });
  }
}

// A model with a buffer, on the meta device on all ranks but 0.
std::shared_ptr<CaseModule> RealOnRankZero(int rank) {
  const DeviceGuard guard(rank == 0 ? CurrentDevice() : kMetaDevice);
  auto model = MakeMlp({64, 64, 64, 64});
  model->AddBuffer("running_mean", ops::Zeros({3}));
  if (rank > 0) return model;
  FillParameters(*model);
  ops::Fill(model->own_buffers()[0].variable.data(), 0.25);
  return model;
}

// J.82, INIT-03: the others never have room for more than their shards and a
// tensor. With an ignored parameter.
TEST(StartValuesCases, Init03OthersNeverHoldTheModel) {
  for (Mode mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    mode.options.sync_module_states = true;
    mode.options.ignored_patterns = {"1\\.bias"};
    RunRanks(4, [&](const World& world) {
      Allocator& allocator = AllocatorOf(CurrentDevice());
      allocator.SetPoison(true);
      allocator.ReleaseCache();
      allocator.ResetPeak();
      const auto model = RealOnRankZero(world->rank());
      const auto sharded = OrThrow(Shard(*model, world, mode));
      const MemoryStats stats = allocator.stats();
      if (world->rank() > 0) {
        constexpr int64_t kTensorBytes = 64 * 64 * 4;
        EXPECT_LE(stats.peak_bytes, stats.current_bytes + kTensorBytes + 512);
      }
      Values values = Gathered(*sharded);
      EXPECT_EQ(values.size(), 7u);
      EXPECT_EQ(values["running_mean"], std::vector<double>(3, 0.25));
      for (const NamedVariable& p : model->NamedParameters()) {
        const size_t n = values[p.name].size();
        ASSERT_GE(n, 64u);
        EXPECT_THAT(values[p.name].front(),
                    testing::DoubleNear(FillValue(0), 1e-7));
        EXPECT_THAT(values[p.name].back(),
                    testing::DoubleNear(FillValue(n - 1), 1e-7));
      }
    });
  }
}

// Rules run on rank 0, and only there; if one is missing all ranks are told.
TEST(StartValuesCases, Init06SyncTakesRankZerosRules) {
  for (const bool complete : {true, false}) {
    RunRanks(3, [&](const World& world) {
      Mode mode = PerParameter();
      mode.options.sync_module_states = true;
      int calls = 0;
      mode.options.param_init_fn = [&](Module& module,
                                       const Initializer& init) {
        ++calls;
        for (const NamedVariable& p : module.own_parameters()) {
          if (complete || p.name != "bias") init.Constant(p.variable, calls);
        }
      };
      const auto model = OnMeta({3, 4, 2});
      const auto sharded = Shard(*model, world, mode);
      EXPECT_EQ(calls > 0, world->rank() == 0);
      if (!complete) {
        EXPECT_THAT(sharded, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "no start value was set for 0.bias"));
        return;
      }
      const Values values = Gathered(**sharded);
      EXPECT_THAT(values.at("0.weight"), testing::Each(1.0));
      EXPECT_THAT(values.at("1.bias"), testing::Each(2.0));
    });
  }
}

// INIT-12: rules that give other values on another rank, and values that only
// one rank has.
TEST(StartValuesCases, Init12DeferredValuesThatDifferAreNamed) {
  RunRanks(3, [&](const World& world) {
    Mode mode = PerParameter();
    mode.options.param_init_fn = [&](Module& module, const Initializer& init) {
      for (const NamedVariable& p : module.own_parameters()) {
        const bool odd = world->rank() == 2 && p.name == "bias";
        init.Constant(p.variable, odd ? 1 + 0x1p-20 : 1.0);
      }
    };
    EXPECT_THAT(Shard(*OnMeta({4, 5, 2}), world, mode),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "0.bias differ between rank 0 and rank 2"));
  });
  for (const int real : {0, 1}) {
    RunRanks(2, [&](const World& world) {
      const auto model = RealOnRankZero(world->rank() == real ? 0 : 1);
      EXPECT_THAT(Shard(*model, world, FullShard()),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "0.weight differ between rank 0 and rank 1"));
    });
  }
}

TEST(StartValuesCases, Init12OneOtherBitIsNamedOnAllRanks) {
  for (const Mode& mode : {FullShard(), PerParameter()}) {
    RunRanks(2, [&](const World& world) {
      const auto model = MakeMlp({4, 5, 2});
      FillParameters(*model);
      if (world->rank() == 1) {
        const Tensor& bias = model->NamedParameters()[1].variable.data();
        ops::Fill(bias.Narrow(0, 2, 1), FillValue(2) + 0x1p-20);
      }
      EXPECT_THAT(Shard(*model, world, mode),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "0.bias differ between rank 0 and rank 1"));
    });
  }
}

TEST(StartValuesCases, Init10RankWithOneParameterMoreIsTold) {
  RunRanks(3, [&](const World& world) {
    const auto model = MakeMlp({4, 5, 2});
    if (world->rank() == 2) model->AddParameter("extra", {2});
    FillParameters(*model);
    EXPECT_THAT(Shard(*model, world, FullShard()),
                StatusIs(absl::StatusCode::kInvalidArgument, "extra"));
  });
}

// HNG-09
TEST(StartValuesCases, Hng09ListsOfOtherLengthsAreCompared) {
  RunRanks(2, [&](const World& world) {
    const auto model =
        world->rank() == 0 ? MakeMlp({4, 5, 2, 2}) : MakeMlp({4, 5, 2});
    FillParameters(*model);
    EXPECT_THAT(Shard(*model, world, PerParameter()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "ranks disagree on the model"));
  });
}

TEST(StartValuesCases, OrderInMemoryThatDiffersIsNamed) {
  RunRanks(2, [&](const World& world) {
    CaseModule model;
    const Tensor wide = ops::Zeros({2, 3});
    const Tensor tall = ops::Zeros({3, 2}).Transpose(0, 1);
    model.AddParameter("w", Variable(world->rank() == 0 ? wide : tall, true));
    EXPECT_THAT(Shard(model, world, FullShard()),
                StatusIs(absl::StatusCode::kInvalidArgument, "stride 1,0"));
  });
}

TEST(StartValuesCases, OptionsThatDifferAreNamedOnAllRanks) {
  RunRanks(2, [&](const World& world) {
    const auto model = MakeMlp({4, 2});
    FillParameters(*model);
    Mode mode = PerParameter(world->rank() == 0);
    EXPECT_THAT(Shard(*model, world, mode),
                StatusIs(absl::StatusCode::kInvalidArgument, "reshard"));
  });
}

// TIE-03: the tie survives being made real, and the table counts once.
TEST(StartValuesCases, Tie03DeferredTieIsOneTable) {
  for (const Mode& mode : AllModes(2)) {
    RunRanks(2, [&](const World& world) {
      auto model = std::make_shared<CaseModule>("Tied");
      {
        const DeviceGuard meta(kMetaDevice);
        auto a = std::make_shared<CaseModule>("A");
        auto b = std::make_shared<CaseModule>("B");
        b->AddParameter("weight", a->AddParameter("weight", {5, 2}));
        model->AddChild("a", a);
        model->AddChild("b", b);
      }
      const auto sharded = OrThrow(Shard(*model, world, mode));
      const auto all = model->NamedParameters(/*keep_duplicates=*/true);
      ASSERT_EQ(all.size(), 2u);
      EXPECT_TRUE(all[0].variable.Is(all[1].variable));
      EXPECT_EQ(Gathered(*sharded).at("a.weight").size(), 10u) << mode.name;
    });
  }
}

TEST(StartValuesCases, ParamInitFnReplacesTheModulesRule) {
  Mode mode = PerParameter();
  mode.options.param_init_fn = [](Module& module, const Initializer& init) {
    for (const NamedVariable& p : module.own_parameters()) {
      init.Constant(p.variable, 3.0);
    }
  };
  RunRanks(2, [&](const World& world) {
    const auto model = OnMeta({3, 2});
    const auto sharded = OrThrow(Shard(*model, world, mode));
    for (const auto& [name, values] : Gathered(*sharded)) {
      EXPECT_THAT(values, testing::Each(3.0)) << name;
    }
  });
}

// J.83: a module is sharded once.
TEST(StartValuesCases, ShardingTwiceIsRefused) {
  RunRanks(2, [&](const World& world) {
    const auto model = MakeMlp({3, 2});
    FillParameters(*model);
    const auto sharded = OrThrow(Shard(*model, world, FullShard()));
    EXPECT_THAT(
        Shard(*model, world, FullShard()),
        StatusIs(absl::StatusCode::kFailedPrecondition, "sharded already"));
  });
}

// J.31, J.63: a whole value is written from outside, and used from then on.
TEST(StartValuesCases, SetFullParameterReplacesTheValue) {
  for (const Mode& mode : AllModes(4)) {
    RunRanks(4, [&](const World& world) {
      const auto model = MakeMlp({17, 5});
      FillParameters(*model);
      const auto sharded = OrThrow(Shard(*model, world, mode));
      const std::vector<double> values = FillValues(90);
      const Tensor whole = Tensor::FromVector(
          std::vector<float>(values.begin() + 5, values.end()), {5, 17});
      EXPECT_OK(sharded->SetFullParameter("0.weight", whole));
      EXPECT_EQ(Gathered(*sharded).at("0.weight"), whole.ToDoubles())
          << mode.name;
      EXPECT_THAT(sharded->SetFullParameter("0.bias", whole),
                  StatusIs(absl::StatusCode::kInvalidArgument, "0.bias"));
      EXPECT_THAT(sharded->SetFullParameter("nosuch", whole),
                  StatusIs(absl::StatusCode::kNotFound, "nosuch"));
    });
  }
}

// J.31: so is a part that is put in the place of this rank's.
TEST(StartValuesCases, AReplacedPartIsTakenOverOrRefused) {
  for (const int world_size : {1, 4}) {
    for (const Mode& mode : AllModes(world_size)) {
      RunRanks(world_size, [&](const World& world) {
        SCOPED_TRACE(mode.name);
        const auto model = MakeMlp({8, 4, 8});
        FillParameters(*model);
        const auto sharded = OrThrow(Shard(*model, world, mode));
        Variable bias = sharded->Parameters()[3].variable;
        const Variable x(ops::Zeros({1, 8}));
        const auto fill = [&](double value) {
          bias.set_data(ops::Full(bias.shape(), value,
                                  {DType::kFloat32, CurrentDevice()}));
        };
        fill(1.5);
        EXPECT_EQ(Gathered(*sharded).at("1.bias"), std::vector<double>(8, 1.5));
        const Tensor first = (*model)(x).data();
        sharded->Reshard();
        fill(2.5);
        const Variable second = (*model)(x);
        EXPECT_NEAR(second.data().ToDoubles()[5] - first.ToDoubles()[5], 1.0,
                    1e-6);
        SumOf(second).Backward();
        EXPECT_EQ(bias.data().ToDoubles(),
                  std::vector<double>(bias.shape().num_elements(), 2.5));
        EXPECT_THAT(Try([&] { model->To(DType::kBFloat16); }),
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             "0.weight is sharded"));
        bias.set_data(ops::Zeros({9}));
        EXPECT_THAT(Try([&] { (*model)(x); }),
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             "1.bias: its value was replaced"));
      });
    }
  }
}

}  // namespace
}  // namespace tessera
