// A rank that dies in the middle of a save, at any of its operations on files,
// ends the save on all ranks with an error, and the last good checkpoint loads.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/training_checkpoint.h"
#include "runtime/data/file_io.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

constexpr int kNumRanks = 3;

absl::Status SaveEither(bool in_background, Communicator& rank,
                        const SaveOptions& options,
                        const std::vector<CheckpointTensor>& tensors) {
  if (!in_background) return SaveCheckpoint(rank, options, tensors).status();
  ASSIGN_OR_RETURN(const std::unique_ptr<BackgroundSaver> saver,
                   BackgroundSaver::Create(rank));
  RETURN_IF_ERROR(saver->Start(options, tensors));
  return saver->Finish();
}

// Whether the rank died before its save was over.
bool SaveWhileARankDies(const std::string& folder, int victim, int at,
                        bool in_background) {
  const std::string survived = folder + "-survived";
  std::filesystem::remove(survived);
  RunRankProcesses(
      RankKind::kSharedMemory, kNumRanks,
      [&](const std::shared_ptr<Communicator>& rank) {
        const bool dies = rank->rank() == victim;
        if (dies) {
          StartFileOperations(
              {.folder = folder, .fault = FileFault::kKill, .at = at});
        }
        const absl::Time start = absl::Now();
        const absl::Status status =
            SaveEither(in_background, *rank, Options(folder, 2, /*keep=*/1),
                       Pieces(*rank, 2));
        EXPECT_LT(absl::Now() - start, absl::Seconds(15));
        if (dies) {
          StopFileOperations();
          EXPECT_OK(status);
          EXPECT_OK(WriteFile(survived, ""));
        }
        if (!status.ok()) {
          EXPECT_THAT(status.ToString(), ::testing::HasSubstr("rank"));
        }
      },
      {.ranks_may_be_killed = true});
  return !std::filesystem::exists(survived);
}

// Returns how often it could die.
int KillAtEachOperation(int victim, bool in_background) {
  const std::string folder = FreshFolder("vanished");
  for (int at = 0; at < 100; ++at) {
    SCOPED_TRACE(at);
    std::filesystem::remove_all(folder);
    RunRankProcesses(RankKind::kSharedMemory, kNumRanks,
                     [&](const std::shared_ptr<Communicator>& rank) {
                       EXPECT_OK(SaveCheckpoint(*rank, Options(folder, 1),
                                                Pieces(*rank, 1)));
                     });
    if (!SaveWhileARankDies(folder, victim, at, in_background)) return at;
    RunRankProcesses(RankKind::kSharedMemory, kNumRanks - 1,
                     [&](const std::shared_ptr<Communicator>& rank) {
                       const auto path = FindLatestCheckpoint(*rank, folder);
                       ASSERT_OK(path);
                       const auto step = ReadManifest(*path)->state.step;
                       const auto loaded = Pieces(*rank, 0);
                       ASSERT_OK(Load(*rank, *path, loaded));
                       ExpectSameValues(
                           loaded, Pieces(*rank, static_cast<float>(step)));
                     });
  }
  return -1;
}

TEST(VanishedRankTest, TheOneThatWritesTheManifest) {
  EXPECT_GE(KillAtEachOperation(/*victim=*/0, /*in_background=*/false), 15);
}

TEST(VanishedRankTest, AnyOther) {
  EXPECT_GE(KillAtEachOperation(/*victim=*/2, /*in_background=*/false), 7);
}

TEST(VanishedRankTest, InTheBackground) {
  EXPECT_GE(KillAtEachOperation(/*victim=*/1, /*in_background=*/true), 7);
}

}  // namespace
}  // namespace tessera
