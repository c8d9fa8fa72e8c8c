// A checkpoint is done or absent: whenever the process ends, the machine loses
// power, or the disk refuses, the last good one is there and loads.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/training_checkpoint.h"
#include "runtime/data/file_io.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kNumRanks = 2;

// What all ranks say of saving `step`, whose values are `step` and up.
absl::Status Save(const std::string& folder, int64_t step,
                  const Retention& keep = {}, int num_ranks = kNumRanks) {
  std::mutex mutex;
  std::vector<absl::Status> statuses;
  RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& rank) {
    SaveOptions options = Options(folder, step);
    options.keep = keep;
    const auto path =
        SaveCheckpoint(*rank, options, Pieces(*rank, static_cast<float>(step)));
    const std::lock_guard lock(mutex);
    statuses.push_back(path.status());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

// The step that would be resumed from, whose values are all there; 0: none.
int64_t GoodStep(const std::string& folder) {
  const auto path = FindLatestCheckpoint(folder);
  if (!path.ok()) {
    EXPECT_THAT(path, StatusIs(absl::StatusCode::kNotFound, "no complete"));
    EXPECT_THAT(path.status().ToString(), ::testing::EndsWith(folder));
    return 0;
  }
  const int64_t step = ReadManifest(*path)->state.step;
  RunRanks(kNumRanks, [&](const std::shared_ptr<Communicator>& rank) {
    const auto loaded = Pieces(*rank, 0);
    EXPECT_OK(Load(*rank, *path, loaded));
    ExpectSameValues(loaded, Pieces(*rank, static_cast<float>(step)));
  });
  return step;
}

// Saves that are interrupted: what was there before, and what is saved.
struct Scenario {
  const char* name;
  std::vector<int64_t> before;
  int64_t step;
  Retention keep;
  bool no_exchange = false;  // Of names, as on NFS.
};

std::vector<Scenario> Scenarios() {
  return {{"the first", {}, 1, {}},
          {"one more", {1}, 2, {.last = 1}},
          {"one of many", {1, 2}, 3, {.last = 1, .every = 2}},
          {"the same again", {1, 2}, 2, {.last = 2}},
          {"the same again, elsewhere", {1, 2}, 2, {.last = 2}, true}};
}

// More ranks saved those that were there before (CKD-04). They are saved once
// and then copied, with what a new process would find.
std::string Prepare(const Scenario& scenario) {
  const std::string saved =
      absl::StrCat(::testing::TempDir(), "/before/", scenario.name);
  if (!fs::exists(saved)) {
    EXPECT_OK(MakeFolders(saved));
    for (const int64_t step : scenario.before) {
      EXPECT_OK(Save(saved, step, {}, kNumRanks + 1));
    }
  }
  const std::string run = FreshFolder("run");
  if (!scenario.before.empty()) {
    EXPECT_OK(MakeFolders(run));
    fs::copy(saved, run + "/checkpoints", fs::copy_options::recursive);
  }
  return run + "/checkpoints";
}

// The largest step before, or 0.
int64_t LastBefore(const Scenario& scenario) {
  return scenario.before.empty() ? 0 : scenario.before.back();
}

std::string Parent(const std::string& folder) {
  return fs::path(folder).parent_path().string();
}

// Saves in a process of its own. When the fault did not end it, a last
// operation, "ended", is there for it to do so.
int SaveInChild(const Scenario& scenario, const std::string& folder,
                FileOperationsOptions options) {
  options.no_exchange = scenario.no_exchange;
  const pid_t child = fork();
  if (child == 0) {
    EXPECT_OK(MakeFolders(options.folder));
    StartFileOperations(options);
    const bool saved = Save(folder, scenario.step, scenario.keep).ok();
    if (saved) mkdir((options.folder + "/ended").c_str(), 0777);
    const int64_t num_operations = StopFileOperations();
    _exit(saved ? static_cast<int>(num_operations) : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

int CountOperations(const Scenario& scenario) {
  const std::string folder = Prepare(scenario);
  const int status = SaveInChild(scenario, folder, {.folder = Parent(folder)});
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(GoodStep(folder), scenario.step);
  return WEXITSTATUS(status);
}

// The process ends at each operation in turn.
TEST(DurabilityTest, AKillAtAnyOperationLeavesTheLastGoodOne) {
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    const int num_operations = CountOperations(scenario);
    ASSERT_GT(num_operations, 15);
    for (int at = 0; at < num_operations; ++at) {
      SCOPED_TRACE(at);
      const std::string folder = Prepare(scenario);
      const int status = SaveInChild(
          scenario, folder,
          {.folder = Parent(folder), .fault = FileFault::kKill, .at = at});
      ASSERT_TRUE(WIFSIGNALED(status));
      const int64_t good = GoodStep(folder);
      EXPECT_TRUE(good == scenario.step || good == LastBefore(scenario))
          << good;
      if (at == num_operations - 1) {
        EXPECT_EQ(good, scenario.step);
      }
      // The next save finds nothing in its way, and cleans up.
      EXPECT_OK(Save(folder, 9, scenario.keep));
      EXPECT_EQ(GoodStep(folder), 9);
      for (const auto& entry : fs::directory_iterator(folder)) {
        EXPECT_FALSE(entry.path().string().ends_with(".tmp")) << entry.path();
      }
    }
  }
}

// The machine ends, and with it all that was not synced.
TEST(DurabilityTest, LostPowerAtAnyOperationLeavesTheLastGoodOne) {
  for (const FileFault fault :
       {FileFault::kLosePower, FileFault::kLosePowerNotNames}) {
    for (const Scenario& scenario : Scenarios()) {
      SCOPED_TRACE(scenario.name);
      const int num_operations = CountOperations(scenario);
      const std::string copy = FreshFolder("copy");
      for (int at = 0; at < num_operations; ++at) {
        SCOPED_TRACE(at);
        fs::remove_all(copy);
        const std::string folder = Prepare(scenario);
        const int status = SaveInChild(
            scenario, folder,
            {.folder = Parent(folder), .fault = fault, .at = at, .copy = copy});
        ASSERT_TRUE(WIFSIGNALED(status));
        const int64_t good = GoodStep(copy + "/checkpoints");
        EXPECT_TRUE(good == scenario.step || good == LastBefore(scenario))
            << good;
        // What was reported as saved is there.
        if (at == num_operations - 1) {
          EXPECT_EQ(good, scenario.step);
        }
      }
    }
  }
}

// The disk refuses one operation of one rank, or all from one on, clean-up
// included.
TEST(DurabilityTest, AnyOperationThatFailsIsOneErrorAndLeavesTheLastGoodOne) {
  for (const auto& [fault, error] : {std::pair(FileFault::kFail, ENOSPC),
                                     std::pair(FileFault::kFailFrom, EROFS)}) {
    for (const Scenario& scenario : Scenarios()) {
      SCOPED_TRACE(scenario.name);
      const int num_operations = CountOperations(scenario) - 1;
      int num_errors = 0;
      for (int at = 0; at < num_operations; ++at) {
        SCOPED_TRACE(at);
        const std::string folder = Prepare(scenario);
        ASSERT_OK(MakeFolders(Parent(folder)));
        StartFileOperations({.folder = Parent(folder),
                             .fault = fault,
                             .at = at,
                             .error_number = error,
                             .no_exchange = scenario.no_exchange});
        const absl::Status status = Save(folder, scenario.step, scenario.keep);
        StopFileOperations();
        if (!status.ok()) {
          ++num_errors;
          EXPECT_THAT(status.ToString(), ::testing::HasSubstr("rank "));
          EXPECT_THAT(status.ToString(), ::testing::HasSubstr("/run"));
          EXPECT_THAT(status.ToString(), ::testing::HasSubstr(strerror(error)));
        }
        const int64_t good = GoodStep(folder);
        EXPECT_TRUE(good == scenario.step || good == LastBefore(scenario));
        if (status.ok()) {
          EXPECT_EQ(good, scenario.step);
        }
        EXPECT_OK(Save(folder, 9));
      }
      EXPECT_GE(num_errors, num_operations * 3 / 4);
    }
  }
}

TEST(DurabilityTest, AFullDiskLeavesTheLastGoodOne) {
  const std::string folder = FreshFolder("full");
  ASSERT_OK(Save(folder, 1));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {64 << 10, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  RunRanks(kNumRanks, [&](const std::shared_ptr<Communicator>& rank) {
    const auto path = SaveCheckpoint(*rank, Options(folder, 2),
                                     Pieces(*rank, 0, /*num_rows=*/100000));
    EXPECT_THAT(path, StatusIs(absl::StatusCode::kOutOfRange,
                               "step-00000002.tmp/rank-00000-of-00002"));
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(GoodStep(folder), 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(DurabilityTest, AFolderThatCannotBeMadeIsOneError) {
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

TEST(DurabilityTest, AKillAtAnyMomentLeavesOnlyWholeCheckpoints) {
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
    EXPECT_OK(Save(folder, 1 << 20));  // Removes what the killed one left.
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_FALSE(entry.path().string().ends_with(".tmp")) << entry.path();
    }
  }
  EXPECT_EQ(num_saved, 8) << "hardly ever killed after a save";
}

}  // namespace
}  // namespace tessera
