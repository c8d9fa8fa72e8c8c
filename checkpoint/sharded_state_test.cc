// A sharded module and its optimizer go to disk and come back.
#include "checkpoint/sharded_state.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

GPT2Config Tiny() {
  return {.vocab_size = 13,
          .n_positions = 8,
          .n_embd = 8,
          .n_layer = 2,
          .n_head = 2};
}

// One rank's model and optimizer.
struct TinyRun {
  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;

  TinyRun(const std::shared_ptr<Communicator>& world, int version,
          uint64_t seed) {
    {
      const DeviceGuard guard(kMetaDevice);
      model = std::make_unique<GPT2LMHeadModel>(Tiny());
    }
    FullyShardOptions options;
    options.fsdp_version = version;
    options.seed = seed;
    sharded = OrThrow(
        FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
    ParameterGroup group = {.parameters = {}, .options = {.lr = 1e-2}};
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
  }

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
    return SaveCheckpoint(*sharded->mesh().world(),
                          {folder, "tiny", {.step = 3}, {}},
                          ShardedTensors(*sharded, *optimizer));
  }
};

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

void ExpectSameParameters(TinyRun& a, TinyRun& b) {
  for (size_t i = 0; i < a.sharded->Parameters().size(); ++i) {
    const ShardedParameter& p = a.sharded->Parameters()[i];
    EXPECT_EQ(p.variable.data().ToDoubles(),
              b.sharded->Parameters()[i].variable.data().ToDoubles())
        << p.name;
  }
}

TEST(ShardedStateTest, AResumedRunTakesTheSameSteps) {
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3, 5}) {
      const std::string folder = FreshFolder("resume");
      RunRanks(world_size, [&](const std::shared_ptr<Communicator>& world) {
        TinyRun whole(world, version, 1);
        for (int64_t n = 0; n < 3; ++n) whole.Step(n);
        const auto path = whole.Save(folder);
        ASSERT_OK(path);
        TinyRun resumed(world, version, 2);
        const auto reader = CheckpointReader::Open(*world, *path, "tiny");
        ASSERT_OK(reader);
        ASSERT_OK(
            ReadShardedTensors(*reader, *resumed.sharded, *resumed.optimizer));
        ExpectSameParameters(whole, resumed);
        for (int64_t n = 3; n < 5; ++n) {
          whole.Step(n);
          resumed.Step(n);
        }
        ExpectSameParameters(whole, resumed);
      });
    }
  }
}

// FRZ-06: no state is made up for a parameter that never had a gradient.
TEST(ShardedStateTest, StateThatWasNotThereIsNotThereAfterwards) {
  const std::string folder = FreshFolder("absent");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    TinyRun fresh(world, 2, 1);
    const auto path = fresh.Save(folder);
    ASSERT_OK(path);
    TinyRun resumed(world, 2, 2);
    const auto reader = CheckpointReader::Open(*world, *path, "tiny");
    ASSERT_OK(reader);
    ASSERT_OK(
        ReadShardedTensors(*reader, *resumed.sharded, *resumed.optimizer));
    for (const auto& state : resumed.optimizer->NamedState()) {
      EXPECT_EQ(state.state, "step") << state.parameter;
    }
    fresh.Step(0);
    resumed.Step(0);
    ExpectSameParameters(fresh, resumed);
  });
}

// Parameters of one type, buffers of two, of which one is not saved.
class WithBuffers : public Module {
 public:
  explicit WithBuffers(DType dtype = DType::kFloat32) : Module("WithBuffers") {
    weight = RegisterParameter("weight", Shape{5, 3}, dtype);
    mean = RegisterBuffer("mean", Tensor::FromVector<float>({0, 0}, {2}));
    count = RegisterBuffer("count", Tensor::FromVector<int64_t>({0}, Shape{}));
    scratch = RegisterBuffer("scratch", Tensor::FromVector<float>({0}, {1}),
                             /*persistent=*/false);
  }
  void ResetParameters(const Initializer& initializer) override {
    initializer.Normal(weight, "weight", 0, 1);
  }

  Variable weight, mean, count, scratch;
};

struct ShardedBuffers {
  explicit ShardedBuffers(const std::shared_ptr<Communicator>& world,
                          uint64_t seed, DType dtype = DType::kFloat32)
      : module(dtype) {
    InitializeParameters(module, seed);
    sharded = OrThrow(FullyShard(module, OrThrow(DeviceMesh::Create(world))));
  }
  std::string Whole() const {
    std::string text;
    sharded->ForEachFullParameter([&](const std::string&, const Tensor& whole) {
      for (const double x : whole.ToDoubles()) absl::StrAppend(&text, x, " ");
    });
    return text;
  }

  WithBuffers module;
  std::unique_ptr<FullyShardedModule> sharded;
};

// CKC-08. Of what ranks have seen apart, rank 0's is saved.
TEST(ShardedStateTest, PersistentBuffersComeBack) {
  const std::string folder = FreshFolder("buffers");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    ShardedBuffers saved(world, 1);
    saved.module.mean.data().data<float>()[1] = 5.0f + world->rank();
    saved.module.count.data().data<int64_t>()[0] = int64_t{1} << 40;
    saved.module.scratch.data().data<float>()[0] = 9;
    const auto path = SaveCheckpoint(*world, {folder, "buffers", {}, {}},
                                     ShardedTensors(*saved.sharded));
    ASSERT_OK(path);
    EXPECT_EQ(ReadManifest(*path)->tensors.size(), 3u);
    ShardedBuffers loaded(world, 2);
    const auto reader = CheckpointReader::Open(*world, *path, "buffers");
    ASSERT_OK(reader);
    ASSERT_OK(ReadShardedTensors(*reader, *loaded.sharded));
    EXPECT_EQ(loaded.module.mean.data().ToVector<float>(),
              (std::vector<float>{0, 5}));
    EXPECT_EQ(loaded.module.count.data().Item(), std::ldexp(1.0, 40));
    EXPECT_EQ(loaded.module.scratch.data().Item(), 0);
    EXPECT_EQ(loaded.Whole(), saved.Whole());
  });
}

// CKC-13.
TEST(ShardedStateTest, ElementTypesAreKept) {
  const std::string folder = FreshFolder("types");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    for (const DType dtype :
         {DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
      ShardedBuffers saved(world, 1, dtype);
      const auto path = SaveCheckpoint(*world, {folder, "types", {}, {}},
                                       ShardedTensors(*saved.sharded));
      ASSERT_OK(path);
      const auto reader = CheckpointReader::Open(*world, *path, "types");
      ASSERT_OK(reader);
      ShardedBuffers loaded(world, 2, dtype);
      ASSERT_OK(ReadShardedTensors(*reader, *loaded.sharded));
      EXPECT_EQ(loaded.Whole(), saved.Whole());
      ShardedBuffers other(world, 2);
      const std::string before = other.Whole();
      EXPECT_THAT(ReadShardedTensors(*reader, *other.sharded),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           absl::StrCat("model.weight is ", DTypeName(dtype),
                                        " [5, 3], wanted float32 [5, 3]")));
      EXPECT_EQ(other.Whole(), before);
    }
  });
}

}  // namespace
}  // namespace tessera
