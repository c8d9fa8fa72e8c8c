// A checkpoint belongs to no number of ranks, version, strategy or wrapping:
// whoever loads it has the values that were saved, and trains on as if nothing
// had happened.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/sharded_state.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

// How a model is shared.
struct Way {
  std::string name;
  int num_ranks = 1;
  FullyShardOptions options = {};
  MeshShape mesh = {};
};

Way Version2(int num_ranks, MeshShape mesh = {}) {
  return {absl::StrCat("FSDP2 on ", num_ranks), num_ranks, {}, mesh};
}

Way Version1(int num_ranks, ShardingStrategy strategy, MeshShape mesh = {}) {
  Way way = {absl::StrCat("FSDP1 on ", num_ranks, ", strategy ",
                          static_cast<int>(strategy)),
             num_ranks,
             {},
             mesh};
  way.options.fsdp_version = 1;
  way.options.sharding_strategy = strategy;
  return way;
}

Way WrappedBy(Way way, const std::string& name, const WrapPolicy& policy) {
  way.name += ", " + name;
  way.options.auto_wrap_policy = policy;
  return way;
}

constexpr MeshShape kTwoByTwo = {
    .replicate = 2, .shard = 2, .has_replicate_axis = true};

// All of 4 ranks, which give the same bits.
std::vector<Way> WaysOfFour() {
  Way kept = Version2(4);
  kept.name += ", kept after forward";
  kept.options.reshard_after_forward = false;
  return {Version2(4),
          Version1(4, ShardingStrategy::kFullShard),
          Version1(4, ShardingStrategy::kShardGradOp),
          Version1(4, ShardingStrategy::kNoShard),
          Version1(4, ShardingStrategy::kHybridShard, kTwoByTwo),
          Version2(4, kTwoByTwo),
          kept,
          WrappedBy(Version2(4), "one unit", WrapNothing{}),
          WrappedBy(Version1(4, ShardingStrategy::kFullShard), "small units",
                    WrapBySize{100})};
}

// 13 rows on 8 ranks, biases of 8: some ranks have little, some nothing.
GPT2Config Tiny() {
  return {.vocab_size = 13,
          .n_positions = 8,
          .n_embd = 8,
          .n_layer = 2,
          .n_head = 2};
}

// One rank's model and optimizer; the first layer norm is frozen.
struct TinyRun {
  TinyRun(const std::shared_ptr<Communicator>& world, const Way& way,
          uint64_t seed) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = std::make_unique<GPT2LMHeadModel>(Tiny());
    }
    for (NamedVariable& p : model->NamedParameters()) {
      if (p.name == kFrozen) p.variable.set_requires_grad(false);
    }
    FullyShardOptions options = way.options;
    options.seed = seed;
    sharded = OrThrow(FullyShard(
        *model, OrThrow(DeviceMesh::Create(world, way.mesh)), options));
    ParameterGroup group = {.parameters = {},
                            .options = {.lr = 1e-2, .eps = 1e-3}};
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
  }

  // Every rank has the same batch.
  void Step(int64_t n) {
    std::vector<int64_t> ids(8);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = (static_cast<int64_t>(i) * 5 + n) % 13;
    }
    const Tensor batch = Tensor::FromVector(ids, Shape{1, 8});
    sharded->ZeroGrad();
    model->Loss(batch, batch).Backward();
    optimizer->Step();
  }

  absl::StatusOr<std::string> Save(const std::string& folder) {
    SaveOptions options = {folder, "tiny", {.step = 3}, {}};
    options.sharding = DescribeSharding(*sharded);
    return SaveCheckpoint(*sharded->mesh().world(), options,
                          ShardedTensors(*sharded, *optimizer));
  }

  absl::Status Load(const std::string& path, const ReadOptions& options = {}) {
    ASSIGN_OR_RETURN(
        const CheckpointReader reader,
        CheckpointReader::Open(*sharded->mesh().world(), path, "tiny"));
    return ReadShardedTensors(reader, *sharded, *optimizer, options);
  }

  static constexpr const char* kFrozen = "transformer.h.0.ln_1.weight";
  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;
};

using Values = std::map<std::string, std::vector<double>>;

// Whole parameters and states by name.
Values GatherValues(TinyRun& run) {
  Values values;
  run.sharded->ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        values[name] = whole.ToDoubles();
      });
  std::map<std::string, std::map<std::string, Tensor>> states;
  for (const NamedOptimizerState& state : run.optimizer->NamedState()) {
    if (const auto* step = std::get_if<int64_t>(&state.value)) {
      values[state.parameter + " step"] = {static_cast<double>(*step)};
    } else {
      states[state.state][state.parameter] = std::get<Tensor>(state.value);
    }
  }
  for (const auto& entry : states) {
    const std::string& state = entry.first;
    const std::map<std::string, Tensor>& tensors = entry.second;
    run.sharded->ForEachFullTensor(
        [&](const ShardedParameter& p) {
          const auto found = tensors.find(p.name);
          return found != tensors.end()
                     ? found->second
                     : Tensor::FromVector(std::vector<float>(p.length),
                                          {p.length});
        },
        [&, state = state](const std::string& name, const Tensor& whole) {
          values[name + " " + state] = whole.ToDoubles();
        });
  }
  return values;
}

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

constexpr int64_t kStepsBefore = 3;
constexpr int64_t kStepsAfter = 10;

// Trains, saves in `folder` and trains on.
struct Trained {
  Values saved;
  Values at_the_end;
};

Trained TrainAndSave(const Way& way, const std::string& folder) {
  Trained trained;
  RunRanks(way.num_ranks, [&](const std::shared_ptr<Communicator>& world) {
    TinyRun run(world, way, 1);
    for (int64_t n = 0; n < kStepsBefore; ++n) run.Step(n);
    ASSERT_OK(run.Save(folder));
    const Values saved = GatherValues(run);
    for (int64_t n = 0; n < kStepsAfter; ++n) run.Step(kStepsBefore + n);
    const Values end = GatherValues(run);
    if (world->rank() == 0) trained = {saved, end};
  });
  return trained;
}

Trained LoadAndTrain(const Way& way, const std::string& folder,
                     int64_t num_steps = kStepsAfter) {
  const std::string path = *FindLatestCheckpoint(folder);
  Trained trained;
  RunRanks(way.num_ranks, [&](const std::shared_ptr<Communicator>& world) {
    TinyRun run(world, way, 2);
    ASSERT_OK(run.Load(path));
    const Values loaded = GatherValues(run);
    for (int64_t n = 0; n < num_steps; ++n) run.Step(kStepsBefore + n);
    const Values end = GatherValues(run);
    if (world->rank() == 0) trained = {loaded, end};
  });
  return trained;
}

void ExpectSameBits(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_EQ(values, b.at(name)) << name;
}

TEST(ReshardTest, AnyNumberOfRanksHasTheSavedValues) {
  const std::string folder = FreshFolder("ranks");
  for (const int savers : {1, 2, 3, 4, 5, 8}) {
    const Trained trained = TrainAndSave(Version2(savers), folder);
    ASSERT_EQ(ReadManifest(*FindLatestCheckpoint(folder))->world_size(),
              savers);
    for (const int loaders : {1, 2, 3, 4, 5, 8}) {
      SCOPED_TRACE(absl::StrCat(savers, " to ", loaders));
      const Trained loaded = LoadAndTrain(Version2(loaders), folder);
      ExpectSameBits(loaded.saved, trained.saved);
      if (savers == loaders) {
        ExpectSameBits(loaded.at_the_end, trained.at_the_end);
        continue;
      }
      for (const auto& [name, values] : trained.at_the_end) {
        EXPECT_TRUE(AllClose(loaded.at_the_end.at(name), values, 1e-5)) << name;
      }
    }
  }
}

// On as many ranks as before, the run that went another way is the same run.
// CKC-04: so it is with other units.
TEST(ReshardTest, AnyVersionAndStrategyGoesOnWithTheSameBits) {
  const std::string folder = FreshFolder("ways");
  const std::vector<Way> ways = WaysOfFour();
  for (const Way& saver : ways) {
    const Trained trained = TrainAndSave(saver, folder);
    for (const Way& loader : ways) {
      SCOPED_TRACE(saver.name + " to " + loader.name);
      const Trained loaded = LoadAndTrain(loader, folder);
      ExpectSameBits(loaded.saved, trained.saved);
      ExpectSameBits(loaded.at_the_end, trained.at_the_end);
    }
  }
}

TEST(ReshardTest, RanksVersionAndMeshMayChangeAtOnce) {
  const std::string folder = FreshFolder("both");
  const MeshShape two_by_four = {
      .replicate = 2, .shard = 4, .has_replicate_axis = true};
  const MeshShape three_by_one = {
      .replicate = 3, .shard = 1, .has_replicate_axis = true};
  const std::vector<Way> ways = {
      Version1(5, ShardingStrategy::kFullShard),
      Version1(3, ShardingStrategy::kNoShard),
      Version1(8, ShardingStrategy::kHybridShardZero2, two_by_four),
      Version2(8, two_by_four), Version2(3, three_by_one)};
  for (const Way& saver : ways) {
    const Trained trained = TrainAndSave(saver, folder);
    for (const Way& loader : ways) {
      SCOPED_TRACE(saver.name + " to " + loader.name);
      ExpectSameBits(LoadAndTrain(loader, folder, 0).saved, trained.saved);
    }
  }
}

// CKC-15: replicas write one copy, and all of them write.
TEST(ReshardTest, ReplicasWriteOneCopyTogether) {
  const std::string folder = FreshFolder("copies");
  for (const Way& way : WaysOfFour()) {
    SCOPED_TRACE(way.name);
    (void)TrainAndSave(way, folder);
    const Manifest manifest = *ReadManifest(*FindLatestCheckpoint(folder));
    int64_t one_copy = 0;
    int64_t largest_tensor = 0;
    std::vector<int64_t> written(4);
    for (const auto& [name, tensor] : manifest.tensors) {
      const int64_t element_bytes = ElementBytes(tensor.dtype);
      const int64_t whole = tensor.shape.num_elements() * element_bytes;
      one_copy += whole;
      largest_tensor = std::max(largest_tensor, whole);
      for (const ManifestPiece& piece : tensor.pieces) {
        written[piece.file] += piece.length * element_bytes;
      }
    }
    const int64_t all =
        std::accumulate(written.begin(), written.end(), int64_t{0});
    EXPECT_EQ(all, one_copy);
    // Units of a few parameters are aligned to more than they hold.
    if (way.options.auto_wrap_policy.index() != WrapPolicy().index()) continue;
    for (const int64_t bytes : written) {
      EXPECT_LE(bytes, one_copy / 4 + largest_tensor);
      EXPECT_GT(bytes, one_copy / 8);
    }
  }
}

// What a forward without a backward has left whole is saved as a shard, too.
TEST(ReshardTest, UnitsThatAreWholeAreSaved) {
  const std::string folder = FreshFolder("whole");
  Way way = Version1(2, ShardingStrategy::kShardGradOp);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    TinyRun run(world, way, 1);
    run.Step(0);
    const Values before = GatherValues(run);
    {
      const NoGrad no_grad;
      const Tensor ids = Tensor::FromVector<int64_t>({1, 2, 3}, {1, 3});
      (void)run.model->Loss(ids, ids);
    }
    const auto path = run.Save(folder);
    ASSERT_OK(path);
    TinyRun other(world, way, 2);
    ASSERT_OK(other.Load(*path));
    ExpectSameBits(GatherValues(other), before);
  });
}

// A model with one block more starts from the other's values when told so.
TEST(ReshardTest, DifferencesAreListedOrIgnored) {
  const std::string folder = FreshFolder("other");
  const Trained trained = TrainAndSave(Version2(2), folder);
  const std::string path = *FindLatestCheckpoint(folder);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& world) {
    GPT2Config config = Tiny();
    config.n_layer = 3;
    config.n_positions = 9;
    GPT2LMHeadModel model(config);
    InitializeParameters(model, 5);
    const auto sharded =
        OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world))));
    ParameterGroup group;
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    AdamW optimizer({group});
    const auto reader = CheckpointReader::Open(*world, path, "tiny");
    ASSERT_OK(reader);
    const absl::Status refused =
        ReadShardedTensors(*reader, *sharded, optimizer);
    for (const char* text :
         {"has no tensor model.transformer.h.2.", ".h.2.mlp.c_fc.bias",
          "optimizer.transformer.h.2.ln_1.weight.step",
          "differs in model.transformer.wpe.weight is float32 [8, 8], wanted "
          "float32 [9, 8]",
          "optimizer.transformer.wpe.weight.exp_avg"}) {
      EXPECT_THAT(refused,
                  StatusIs(absl::StatusCode::kFailedPrecondition, text));
    }
    for (const auto& state : optimizer.NamedState()) {
      EXPECT_EQ(state.state, "step");
    }
    ASSERT_OK(ReadShardedTensors(
        *reader, *sharded, optimizer,
        {.ignore_missing = true, .ignore_mismatched = true}));
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          const auto saved = trained.saved.find(name);
          const bool differs = name == "transformer.wpe.weight";
          if (saved == trained.saved.end() || differs) return;
          EXPECT_EQ(whole.ToDoubles(), saved->second) << name;
        });
    for (const auto& state : optimizer.NamedState()) {
      const bool anew = state.parameter.find("h.2.") != std::string::npos ||
                        state.parameter.find("wpe") != std::string::npos ||
                        state.parameter == TinyRun::kFrozen;
      if (state.state == "step") {
        EXPECT_EQ(std::get<int64_t>(state.value), anew ? 0 : kStepsBefore)
            << state.parameter;
      } else {
        EXPECT_FALSE(anew) << state.parameter;
      }
    }
    // The model alone, from a checkpoint that has an optimizer's states too.
    InitializeParameters(model, 6);
    EXPECT_THAT(ReadShardedTensors(*reader, *sharded),
                StatusIs(absl::StatusCode::kFailedPrecondition, "h.2."));
  });
  RunRanks(3, [&](const std::shared_ptr<Communicator>& world) {
    TinyRun run(world, Version2(3), 4);
    const auto reader = CheckpointReader::Open(*world, path, "tiny");
    ASSERT_OK(reader);
    ASSERT_OK(ReadShardedTensors(*reader, *run.sharded));
    run.sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          EXPECT_EQ(whole.ToDoubles(), trained.saved.at(name)) << name;
        });
  });
}

}  // namespace
}  // namespace tessera
