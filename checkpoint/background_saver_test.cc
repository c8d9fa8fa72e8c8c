// A background save holds one instant, and is as safe as any other.
#include "checkpoint/background_saver.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/data/file_io.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

using Ranks = std::shared_ptr<Communicator>;

void SetAll(const std::vector<CheckpointTensor>& tensors, float value) {
  for (const CheckpointTensor& t : tensors) {
    std::fill_n(t.tensor.data<float>(), t.tensor.num_elements(), value);
  }
}

void ExpectSaved(Communicator& rank, const std::string& path, float value) {
  const auto loaded = Pieces(rank, -1);
  ASSERT_OK(Load(rank, path, loaded));
  ExpectSameValues(loaded, Pieces(rank, value));
}

// CKD-05: the disk is slow, and the values change at once.
TEST(BackgroundSaverTest, ASaveHoldsTheInstantOfItsStart) {
  const std::string folder = FreshFolder("instant");
  ASSERT_OK(MakeFolders(folder));
  StartFileOperations({.folder = folder, .delay_us = 5000});
  RunRanks(3, [&](const Ranks& rank) {
    auto saver = BackgroundSaver::Create(*rank);
    ASSERT_OK(saver);
    const auto tensors = Pieces(*rank, 5);
    SaveOptions options = Options(folder, 5);
    ASSERT_OK((*saver)->Start(options, tensors));
    SetAll(tensors, 99);
    options.state = {};
    options.folder = "/none";
    EXPECT_FALSE((*saver)->TakeReport().has_value());
    EXPECT_TRUE((*saver)->ProgressLine().has_value());
    // Training communicates meanwhile.
    for (int step = 0; step < 3; ++step) {
      EXPECT_OK(rank->AgreeOnStatus(absl::OkStatus(), "step"));
    }
    ASSERT_OK((*saver)->Finish());
    EXPECT_FALSE((*saver)->ProgressLine().has_value());
    const auto report = (*saver)->TakeReport();
    ASSERT_TRUE(report.has_value());
    EXPECT_FALSE((*saver)->TakeReport().has_value());
    EXPECT_EQ(report->step, 5);
    EXPECT_EQ(report->path, folder + "/step-00000005");
    EXPECT_GT(report->num_bytes, (15 + 2 + 1) * 4);
    EXPECT_GT(report->write_seconds, report->stopped_seconds);
    EXPECT_THAT(ReportLine(*report), ::testing::HasSubstr("saved step 5: "));
    EXPECT_EQ(ReadManifest(report->path)->state, Options(folder, 5).state);
    ExpectSaved(*rank, report->path, 5);
  });
  StopFileOperations();
}

// One snapshot at a time, however often it is asked for.
TEST(BackgroundSaverTest, ASlowDiskHoldsTrainingBack) {
  const std::string folder = FreshFolder("slow");
  ASSERT_OK(MakeFolders(folder));
  StartFileOperations({.folder = folder, .delay_us = 5000});
  RunRanks(2, [&](const Ranks& rank) {
    auto saver = BackgroundSaver::Create(*rank);
    ASSERT_OK(saver);
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_OK((*saver)->Start(Options(folder, step),
                                Pieces(*rank, static_cast<float>(step))));
      const auto report = (*saver)->TakeReport();
      ASSERT_EQ(report.has_value(), step > 1);
      if (step > 1) {
        EXPECT_EQ(report->step, step - 1);
      }
      if (step > 2) {
        EXPECT_GT(report->stopped_seconds, 0.02);
      }
    }
    ASSERT_OK((*saver)->Finish());
    for (int64_t step = 1; step <= 4; ++step) {
      ExpectSaved(*rank, CheckpointPath(folder, step),
                  static_cast<float>(step));
    }
  });
  StopFileOperations();
}

TEST(BackgroundSaverTest, AnErrorIsSaidOnAllRanksAtTheNextCall) {
  const std::string folder = FreshFolder("error");
  ASSERT_OK(MakeFolders(folder));
  RunRanks(2, [&](const Ranks& rank) {
    auto saver = BackgroundSaver::Create(*rank);
    ASSERT_OK(saver);
    ASSERT_OK((*saver)->Start(Options(folder, 1), Pieces(*rank, 1)));
    ASSERT_OK((*saver)->Finish());
    ASSERT_OK(rank->AgreeOnStatus(absl::OkStatus(), "ready"));
    if (rank->rank() == 0) {
      StartFileOperations(
          {.folder = folder, .fault = FileFault::kFail, .at = 8});
    }
    ASSERT_OK(rank->AgreeOnStatus(absl::OkStatus(), "armed"));
    for (const bool finish : {true, false}) {
      ASSERT_OK((*saver)->Start(Options(folder, 2), Pieces(*rank, 2)));
      const absl::Status status =
          finish ? (*saver)->Finish()
                 : (*saver)->Start(Options(folder, 3), Pieces(*rank, 3));
      // The second one finds a disk that works.
      if (finish) {
        EXPECT_THAT(status.ToString(), ::testing::HasSubstr("No space left"));
        EXPECT_EQ(*FindLatestCheckpoint(*rank, folder),
                  folder + "/step-00000001");
      } else {
        EXPECT_OK(status);
      }
    }
    ASSERT_OK((*saver)->Finish());
    ExpectSaved(*rank, folder + "/step-00000003", 3);
    // What cannot be saved is said at once.
    auto wrong = Pieces(*rank, 1);
    if (rank->rank() == 1) wrong[1].name = "w";
    EXPECT_THAT((*saver)->Start(Options(folder, 4), wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 1: checkpoint: tensor \"w\" is given twice"));
  });
  StopFileOperations();
}

// CKD-02: killed while it is written, with one kept: the old one is still
// there. Destruction waits.
TEST(BackgroundSaverTest, AKillWhileItIsWrittenLeavesTheOldOne) {
  const std::string folder = FreshFolder("kill");
  const pid_t child = fork();
  if (child == 0) {
    RunRanks(2, [&](const Ranks& rank) {
      auto saver = BackgroundSaver::Create(*rank);
      ASSERT_OK(saver);
      ASSERT_OK(
          (*saver)->Start(Options(folder, 1, /*keep=*/1), Pieces(*rank, 1)));
      ASSERT_OK((*saver)->Finish());
      if (rank->rank() == 0) {
        StartFileOperations({.folder = folder, .delay_us = 50000});
      }
      ASSERT_OK(
          (*saver)->Start(Options(folder, 2, /*keep=*/1), Pieces(*rank, 2)));
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      EXPECT_TRUE((*saver)->ProgressLine().has_value());
      kill(getpid(), SIGKILL);
    });
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  RunRanks(2, [&](const Ranks& rank) {
    const auto path = FindLatestCheckpoint(*rank, folder);
    ASSERT_OK(path);
    ExpectSaved(*rank, *path, 1);
    {
      auto saver = BackgroundSaver::Create(*rank);
      ASSERT_OK(saver);
      ASSERT_OK((*saver)->Start(Options(folder, 3), Pieces(*rank, 3)));
    }
    ExpectSaved(*rank, folder + "/step-00000003", 3);
  });
}

}  // namespace
}  // namespace tessera
