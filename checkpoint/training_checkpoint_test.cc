// A checkpoint is done or absent; what is wrong with one is the same error on
// every rank; and what was saved comes back bit for bit.
#include "checkpoint/training_checkpoint.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  return folder;
}

// Three tensors, of which the last ranks keep little or nothing. Elements are
// `value` plus their position.
std::vector<CheckpointTensor> Pieces(const Communicator& communicator,
                                     float value, int64_t num_rows = 5) {
  std::vector<CheckpointTensor> tensors;
  const int64_t world_size = communicator.world_size();
  const auto add = [&](const std::string& name, const Shape& shape) {
    const int64_t whole = shape.num_elements();
    const int64_t part = (whole + world_size - 1) / world_size;
    const int64_t begin = std::min(part * communicator.rank(), whole);
    const int64_t length = std::min(part, whole - begin);
    std::vector<float> values(length);
    for (int64_t i = 0; i < length; ++i) {
      values[i] = value + static_cast<float>(begin + i);
    }
    tensors.push_back(
        {name, Tensor::FromVector(values, Shape{length}), shape, begin});
  };
  add("w", Shape{num_rows, 3});
  add("b", Shape{2});
  add("scalar", Shape{});
  return tensors;
}

SaveOptions Options(const std::string& folder, int64_t step, int keep = 0) {
  RunState state = {step, step * 8, 42, {{"text", "kjv"}}};
  return {folder, "tiny model", state, keep};
}

void ExpectSameValues(const std::vector<CheckpointTensor>& a,
                      const std::vector<CheckpointTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor.ToVector<float>(), b[i].tensor.ToVector<float>());
  }
}

// Saves one of 3 ranks, and returns its path.
std::string Save(const std::string& folder, int64_t step, float value = 0,
                 int keep = 0) {
  RunRanks(3, [&](const std::shared_ptr<Communicator>& communicator) {
    const auto path = SaveCheckpoint(*communicator, Options(folder, step, keep),
                                     Pieces(*communicator, value));
    EXPECT_OK(path);
  });
  return *FindLatestCheckpoint(folder);
}

absl::Status Load(Communicator& communicator, const std::string& path,
                  const std::vector<CheckpointTensor>& into,
                  const std::string& model = "tiny model") {
  ASSIGN_OR_RETURN(const CheckpointReader reader,
                   CheckpointReader::Open(communicator, path, model));
  return reader.Read(communicator, into);
}

// Loads on `world_size` ranks. Expects one status on all ranks, returns it.
absl::Status LoadStatus(int world_size, const std::string& path,
                        const std::string& model = "tiny model") {
  std::mutex mutex;
  std::vector<absl::Status> statuses;
  RunRanks(world_size, [&](const std::shared_ptr<Communicator>& communicator) {
    const absl::Status status =
        Load(*communicator, path, Pieces(*communicator, 0), model);
    const std::lock_guard lock(mutex);
    statuses.push_back(status);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

TEST(TrainingCheckpointTest, WhatWasSavedComesBackBitForBit) {
  for (const int world_size : {1, 2, 3, 8}) {
    const std::string folder = FreshFolder("round");
    RunRanks(world_size, [&](const std::shared_ptr<Communicator>& rank) {
      const auto saved = Pieces(*rank, 0.1f);
      const auto path = SaveCheckpoint(*rank, Options(folder, 7), saved);
      ASSERT_OK(path);
      EXPECT_EQ(*FindLatestCheckpoint(*rank, folder), *path);
      const auto loaded = Pieces(*rank, 100);
      const auto reader = CheckpointReader::Open(*rank, *path, "tiny model");
      ASSERT_OK(reader);
      EXPECT_EQ(reader->manifest().state, Options(folder, 7).state);
      EXPECT_OK(reader->Read(*rank, loaded));
      ExpectSameValues(saved, loaded);
    });
  }
}

TEST(TrainingCheckpointTest, TheLatestIsTheLargestCompleteStep) {
  const std::string folder = FreshFolder("latest");
  EXPECT_THAT(FindLatestCheckpoint(folder),
              StatusIs(absl::StatusCode::kNotFound, folder));
  Save(folder, 900);
  Save(folder, 100000000);
  const std::string path = Save(folder, 1000);
  EXPECT_EQ(path, folder + "/step-100000000");
  ASSERT_OK(MakeFolders(folder + "/step-999999999"));  // Has no manifest.
  ASSERT_OK(MakeFolders(folder + "/step-x"));
  EXPECT_EQ(*FindLatestCheckpoint(folder), path);
}

TEST(TrainingCheckpointTest, OldOnesGoWhenTheNewOneIsThere) {
  const std::string folder = FreshFolder("keep");
  for (int64_t step = 1; step <= 4; ++step) Save(folder, step, 0, /*keep=*/2);
  EXPECT_FALSE(fs::exists(folder + "/step-00000002"));
  EXPECT_TRUE(fs::exists(folder + "/step-00000003"));
  EXPECT_TRUE(fs::exists(folder + "/step-00000004"));
}

TEST(TrainingCheckpointTest, TheSameStepIsReplaced) {
  const std::string folder = FreshFolder("replace");
  Save(folder, 5, 1);
  const std::string path = Save(folder, 5, 2);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    const auto loaded = Pieces(*rank, 0);
    EXPECT_OK(Load(*rank, path, loaded));
    ExpectSameValues(loaded, Pieces(*rank, 2));
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(TrainingCheckpointTest, DamageIsOneErrorOnAllRanks) {
  const std::string folder = FreshFolder("damage");
  const std::string path = Save(folder, 1);
  const std::string shard = path + "/rank-00001-of-00003.safetensors";
  const std::string good = *ReadFile(shard);
  const auto kLost = absl::StatusCode::kDataLoss;

  fs::resize_file(shard, good.size() - 1);
  EXPECT_THAT(LoadStatus(3, path), StatusIs(kLost, "rank 1: " + shard));
  std::string flipped = good;
  flipped.back() ^= 1;
  ASSERT_OK(WriteFile(shard, flipped));
  EXPECT_THAT(LoadStatus(3, path), StatusIs(kLost, shard + ": its checksum"));
  fs::remove(shard);
  EXPECT_THAT(LoadStatus(3, path),
              StatusIs(absl::StatusCode::kNotFound, shard));
  ASSERT_OK(WriteFile(shard, good));
  EXPECT_OK(LoadStatus(3, path));

  const std::string manifest = path + "/manifest.json";
  fs::resize_file(manifest, fs::file_size(manifest) / 2);
  EXPECT_THAT(LoadStatus(3, path), StatusIs(kLost, manifest));
}

TEST(TrainingCheckpointTest, AnotherRunIsOneErrorOnAllRanks) {
  const std::string path = Save(FreshFolder("other"), 1);
  const auto kWrong = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(LoadStatus(2, path),
              StatusIs(kWrong, "was saved on 3 ranks, this run has 2"));
  EXPECT_THAT(LoadStatus(3, path, "large model"),
              StatusIs(kWrong, "saved tiny model, this run has large model"));
}

TEST(TrainingCheckpointTest, OtherTensorsAreOneErrorAndChangeNothing) {
  const std::string path = Save(FreshFolder("tensors"), 1);
  const auto expect = [&](absl::StatusCode code, const std::string& message,
                          const auto& change) {
    RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
      std::vector<CheckpointTensor> into = Pieces(*rank, 50);
      if (rank->rank() == 1) change(into);
      EXPECT_THAT(Load(*rank, path, into), StatusIs(code, message));
      if (rank->rank() != 1) ExpectSameValues(into, Pieces(*rank, 50));
    });
  };
  using Tensors = std::vector<CheckpointTensor>;
  const auto kWrong = absl::StatusCode::kFailedPrecondition;
  expect(absl::StatusCode::kNotFound, "rank 1: " + path + ": has no tensor \"v",
         [](Tensors& t) { t[0].name = "v"; });
  expect(kWrong, "holds tensor \"scalar\", which this run lacks",
         [](Tensors& t) { t.pop_back(); });
  expect(kWrong, "saved float32 [5, 3], elements [5, +5)",
         [](Tensors& t) { t[0].begin = 4; });
  expect(kWrong, "wanted float32 [3, 5]", [](Tensors& t) {
    t[0].global_shape = Shape({3, 5});
  });
  expect(kWrong, "wanted int32 [5, 3]", [](Tensors& t) {
    t[0].tensor = Tensor::Empty(Shape{5}, {DType::kInt32, CpuDevice()});
  });
  expect(absl::StatusCode::kInvalidArgument, "is given twice",
         [](Tensors& t) { t[1].name = "w"; });
}

TEST(TrainingCheckpointTest, RanksThatKeepOtherTensorsCannotSave) {
  const std::string folder = FreshFolder("disagree");
  const std::string before = Save(folder, 1);
  for (const bool more : {false, true}) {
    RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
      std::vector<CheckpointTensor> tensors = Pieces(*rank, 0);
      if (rank->rank() == 2 && more) {
        tensors.push_back({"extra", tensors[1].tensor, Shape{2}, 0});
        tensors.back().tensor = Tensor::Empty(Shape{0});
      }
      if (rank->rank() == 2 && !more) tensors.pop_back();
      EXPECT_THAT(SaveCheckpoint(*rank, Options(folder, 2), tensors),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           more ? "\"extra\" of rank 2" : "not there on rank"));
    });
  }
  EXPECT_EQ(*FindLatestCheckpoint(folder), before);
}

TEST(TrainingCheckpointTest, AFullDiskLeavesTheLastGoodOne) {
  const std::string folder = FreshFolder("full");
  const std::string before = Save(folder, 1, 3);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {64 << 10, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    const auto path = SaveCheckpoint(*rank, Options(folder, 2),
                                     Pieces(*rank, 0, /*num_rows=*/100000));
    EXPECT_THAT(path, StatusIs(absl::StatusCode::kOutOfRange,
                               "step-00000002.tmp/rank-00000-of-00003"));
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(*FindLatestCheckpoint(folder), before);
  EXPECT_OK(LoadStatus(3, before));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(TrainingCheckpointTest, AFolderThatCannotBeMadeIsOneError) {
  const std::string folder = FreshFolder("file");
  ASSERT_OK(WriteFile(folder, ""));
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    const auto path =
        SaveCheckpoint(*rank, Options(folder, 1), Pieces(*rank, 0));
    EXPECT_FALSE(path.ok());
    EXPECT_THAT(path, StatusIs(path.status().code(), folder));
  });
}

// Saves ever larger steps until it is killed.
[[noreturn]] void SaveForEver(const std::string& folder) {
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    for (int64_t step = 1;; ++step) {
      const auto path = SaveCheckpoint(
          *rank, Options(folder, step, /*keep=*/2),
          Pieces(*rank, static_cast<float>(step), /*num_rows=*/30000));
      if (!path.ok()) std::_Exit(1);
    }
  });
  std::_Exit(1);
}

TEST(TrainingCheckpointTest, AKillAtAnyMomentLeavesOnlyWholeCheckpoints) {
  const std::string folder = FreshFolder("kill");
  int64_t num_saved = 0;
  // Ever later, so that a slow build comes to its first save too.
  for (int round = 0; round < 40 && num_saved < 8; ++round) {
    fs::remove_all(folder);
    const pid_t child = fork();
    if (child == 0) SaveForEver(folder);
    usleep(20000 + 15919 * round);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saving process ended by itself";
    const auto path = FindLatestCheckpoint(folder);
    if (!path.ok()) continue;  // Killed before the first one.
    ++num_saved;
    RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
      const auto loaded = Pieces(*rank, 0, 30000);
      const auto reader = CheckpointReader::Open(*rank, *path, "tiny model");
      ASSERT_OK(reader);
      ASSERT_OK(reader->Read(*rank, loaded));
      const auto step = reader->manifest().state.step;
      ExpectSameValues(loaded, Pieces(*rank, static_cast<float>(step), 30000));
    });
    Save(folder, 1 << 20);  // Removes what the killed one left.
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_FALSE(entry.path().string().ends_with(".tmp")) << entry.path();
    }
  }
  EXPECT_EQ(num_saved, 8) << "hardly ever killed after a save";
}

}  // namespace
}  // namespace tessera
