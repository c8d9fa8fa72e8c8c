// Saving and loading take a bounded piece of memory beside the state itself,
// and the files take no more than one copy. (CKD-07)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/sharded_state.h"
#include "checkpoint/training_checkpoint.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

// "VmHWM" (the most so far) or "VmRSS" (now).
int64_t ProcessBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long long kilobytes = 0;
    if (line.starts_with(name) &&
        std::sscanf(line.c_str() + name.size() + 1, "%lld", &kilobytes) == 1) {
      return kilobytes * 1024;
    }
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

// In a process of its own, whose memory nobody else uses.
void InChild(const std::function<void()>& f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Ten tensors of 10 MiB on each rank.
std::vector<CheckpointTensor> LargePieces(const Communicator& rank) {
  std::vector<CheckpointTensor> tensors;
  for (int i = 0; i < 10; ++i) {
    const int64_t whole = 10 * kMegabyte / 4;
    const int64_t part = whole / rank.world_size();
    const Tensor tensor = Tensor::Empty(Shape{part});
    std::fill_n(tensor.data<float>(), part, static_cast<float>(i));
    tensors.push_back(
        {"t" + std::to_string(i), tensor, Shape{whole}, part * rank.rank()});
  }
  return tensors;
}

TEST(CheckpointMemoryTest, SavingAndLoadingStream) {
  const std::string folder = FreshFolder("memory");
  InChild([&] {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
      const auto tensors = LargePieces(*rank);
      ASSERT_OK(rank->AgreeOnStatus(absl::OkStatus(), "filled"));
      const int64_t before = ProcessBytes("VmHWM");
      ASSERT_OK(SaveCheckpoint(*rank, Options(folder, 1), tensors));
      EXPECT_LT(ProcessBytes("VmHWM") - before, 8 * kMegabyte);
    });
  });
  InChild([&] {
    RunRanks(1, [&](const std::shared_ptr<Communicator>& rank) {
      const auto tensors = LargePieces(*rank);
      for (const CheckpointTensor& t : tensors) {
        std::fill_n(t.tensor.data<float>(), t.tensor.num_elements(), -1.0f);
      }
      const int64_t before = ProcessBytes("VmHWM");
      ASSERT_OK(Load(*rank, *FindLatestCheckpoint(folder), tensors));
      EXPECT_LT(ProcessBytes("VmHWM") - before, 8 * kMegabyte);
      EXPECT_EQ(tensors[7].tensor.data<float>()[kMegabyte], 7.0f);
    });
  });
  int64_t num_bytes = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(*FindLatestCheckpoint(folder))) {
    num_bytes += static_cast<int64_t>(file.file_size());
  }
  EXPECT_LT(num_bytes, 100 * kMegabyte + 10000);
}

// A model of 24 MiB, most of it in one parameter, and twice that of moments.
struct LargeRun {
  explicit LargeRun(const std::shared_ptr<Communicator>& world) {
    {
      const DeviceGuard guard(kMetaDevice);
      model =
          std::make_unique<GPT2LMHeadModel>(GPT2Config{.vocab_size = 1 << 17,
                                                       .n_positions = 8,
                                                       .n_embd = 48,
                                                       .n_layer = 1,
                                                       .n_head = 2});
    }
    sharded = OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world))));
    ParameterGroup group;
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
  }

  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;
};

TEST(CheckpointMemoryTest, AnOptimizerIsReadInPlace) {
  const std::string folder = FreshFolder("optimizer");
  InChild([&] {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
      LargeRun run(world);
      const Tensor ids = Tensor::FromVector<int64_t>({1, 2, 3, 4}, {1, 4});
      run.model->Loss(ids, ids).Backward();
      run.optimizer->Step();
      ASSERT_OK(SaveCheckpoint(*world, Options(folder, 1),
                               ShardedTensors(*run.sharded, *run.optimizer)));
    });
  });
  InChild([&] {
    RunRanks(1, [&](const std::shared_ptr<Communicator>& world) {
      LargeRun run(world);
      const auto reader = CheckpointReader::Open(
          *world, *FindLatestCheckpoint(folder), "tiny model");
      ASSERT_OK(reader);
      const int64_t before = ProcessBytes("VmRSS");
      ASSERT_OK(ReadShardedTensors(*reader, *run.sharded, *run.optimizer));
      EXPECT_GT(ProcessBytes("VmRSS") - before, 40 * kMegabyte);
      // The moments, and zeros of one parameter.
      EXPECT_LT(ProcessBytes("VmHWM") - before, (48 + 24 + 8) * kMegabyte);
    });
  });
}

}  // namespace
}  // namespace tessera
