// Which checkpoint is the latest, and which are old: by the order in which they
// were saved, and what is damaged does not count.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/fake_communicator.h"
#include "runtime/data/file_io.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

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

TEST(LatestCheckpointTest, TheLatestIsTheLastThatIsComplete) {
  const std::string folder = FreshFolder("latest");
  EXPECT_THAT(FindLatestCheckpoint(folder),
              StatusIs(absl::StatusCode::kNotFound, folder));
  Save(folder, 900);
  Save(folder, 100000000);
  const std::string path = Save(folder, 1000);
  EXPECT_EQ(path, folder + "/step-00001000");
  ASSERT_OK(MakeFolders(folder + "/step-999999999"));  // Has no manifest.
  ASSERT_OK(MakeFolders(folder + "/step-x"));
  EXPECT_EQ(*FindLatestCheckpoint(folder), path);
}

TEST(LatestCheckpointTest, OldOnesGoWhenTheNewOneIsThere) {
  const std::string folder = FreshFolder("keep");
  for (int64_t step = 1; step <= 4; ++step) Save(folder, step, 0, /*keep=*/2);
  EXPECT_FALSE(fs::exists(folder + "/step-00000002"));
  EXPECT_TRUE(fs::exists(folder + "/step-00000003"));
  EXPECT_TRUE(fs::exists(folder + "/step-00000004"));
}

std::string NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string().substr(5));
  }
  return absl::StrJoin(names, " ");
}

// What was left behind goes when it is old, and is never the latest.
TEST(LatestCheckpointTest, ARunThatWentBackGoesOnFromThere) {
  const std::string folder = FreshFolder("back");
  for (const int64_t step : {100, 200, 300}) Save(folder, step);
  EXPECT_EQ(Save(folder, 110, 1, /*keep=*/2), folder + "/step-00000110");
  EXPECT_EQ(NamesIn(folder), "00000110 00000300");
  EXPECT_EQ(Save(folder, 120, 2, /*keep=*/2), folder + "/step-00000120");
  EXPECT_EQ(NamesIn(folder), "00000110 00000120");
  EXPECT_EQ(Save(folder, 110, 3, /*keep=*/2), folder + "/step-00000110");
  EXPECT_EQ(ReadManifest(folder + "/step-00000110")->save_number, 6);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_EQ(*FindLatestCheckpoint(*rank, folder), folder + "/step-00000110");
  });
}

// Of those that older programs saved, the largest step is the latest.
TEST(LatestCheckpointTest, ThoseThatDoNotSayWhenTheyWereSavedComeFirst) {
  const std::string folder = FreshFolder("unnumbered");
  for (const int64_t step : {3, 1, 2}) {
    const std::string manifest = Save(folder, step) + "/manifest.json";
    std::string text = *ReadFile(manifest);
    const size_t at = text.find(" \"_save_number\"");
    ASSERT_NE(at, std::string::npos);
    ASSERT_OK(
        WriteFile(manifest, text.erase(at, text.find('\n', at) + 1 - at)));
  }
  EXPECT_EQ(*FindLatestCheckpoint(folder), folder + "/step-00000003");
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_OK(Load(*rank, folder + "/step-00000003", Pieces(*rank, 0)));
  });
  EXPECT_EQ(Save(folder, 2, 1, /*keep=*/2), folder + "/step-00000002");
  EXPECT_EQ(NamesIn(folder), "00000002 00000003");
}

TEST(LatestCheckpointTest, WhichGoIsArithmetic) {
  std::vector<CheckpointFolder> all;
  for (int64_t step = 1; step <= 9; ++step) {
    all.push_back({step, absl::StrCat("s", step)});
  }
  const auto gone = [&](const std::string& newest, const Retention& keep) {
    std::string text;
    for (const CheckpointFolder& old : OldCheckpoints(all, newest, keep)) {
      text += old.path;
    }
    return text;
  };
  EXPECT_EQ(gone("s9", {}), "");
  EXPECT_EQ(gone("s9", {.last = 0, .every = 3}), "");
  EXPECT_EQ(gone("s9", {.last = 9}), "");
  EXPECT_EQ(gone("s9", {.last = 7}), "s1s2");
  EXPECT_EQ(gone("s9", {.last = 1}), "s1s2s3s4s5s6s7s8");
  EXPECT_EQ(gone("s9", {.last = 1, .every = 3}), "s1s2s4s5s7s8");
  EXPECT_EQ(gone("s9", {.last = 2, .every = 4}), "s1s2s3s5s6s7");
  // A run that went back to an earlier step.
  EXPECT_EQ(gone("s4", {.last = 1}), "s1s2s3s5s6s7s8");
}

TEST(LatestCheckpointTest, WhatIsNotWholeIsPassedOver) {
  const std::string folder = FreshFolder("whole");
  const std::string good = Save(folder, 1);
  const std::string truncated = Save(folder, 2);
  const std::string without = Save(folder, 3);
  const std::string unreadable = Save(folder, 4);
  const std::string shard = "/rank-00002-of-00003.safetensors";
  fs::resize_file(truncated + shard, fs::file_size(truncated + shard) - 1);
  fs::remove(without + shard);
  fs::resize_file(unreadable + "/manifest.json", 100);
  EXPECT_EQ(*FindLatestCheckpoint(folder), good);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_EQ(*FindLatestCheckpoint(*rank, folder), good);
  });
  fs::remove_all(good);
  EXPECT_THAT(FindLatestCheckpoint(folder),
              StatusIs(absl::StatusCode::kNotFound, truncated + shard));
}

// What `folder`'s manifest says becomes what another program's would.
void ChangeManifest(const std::string& path, const std::string& from,
                    const std::string& to) {
  std::string text = *ReadFile(path + "/manifest.json");
  ASSERT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), to);
  ASSERT_OK(WriteFile(path + "/manifest.json", text));
}

TEST(LatestCheckpointTest, AnotherVersionsIsNeitherPassedOverNorReplaced) {
  const std::string folder = FreshFolder("newer");
  Save(folder, 1);
  const std::string newer = Save(folder, 2);
  ChangeManifest(newer, "\"version\": 2", "\"version\": 3");
  const auto refused =
      StatusIs(absl::StatusCode::kUnimplemented,
               newer + "/manifest.json: has version 3, this program reads 2");
  EXPECT_THAT(FindLatestCheckpoint(folder), refused);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_THAT(FindLatestCheckpoint(*rank, folder), refused);
    EXPECT_THAT(CheckpointReader::OpenLatest(*rank, folder, "tiny model"),
                refused);
    EXPECT_THAT(
        SaveCheckpoint(*rank, Options(folder, 2, 0), Pieces(*rank, 0)),
        StatusIs(absl::StatusCode::kFailedPrecondition, "another version"));
    for (const int64_t step : {3, 4}) {
      EXPECT_OK(SaveCheckpoint(*rank, Options(folder, step, /*keep=*/1),
                               Pieces(*rank, 0)));
    }
  });
  EXPECT_EQ(NamesIn(folder), "00000002 00000004");
  // Wherever it says when it was saved.
  ChangeManifest(newer, "\"_save_number\"", "\"saved\"");
  EXPECT_THAT(FindLatestCheckpoint(folder), refused);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_THAT(FindLatestCheckpoint(*rank, folder),
                StatusIs(absl::StatusCode::kUnimplemented, "has version 3"));
  });
}

TEST(LatestCheckpointTest, FilesOfOthersAreNotRemoved) {
  const std::string folder = FreshFolder("notes");
  ASSERT_OK(WriteFile(Save(folder, 1) + "/notes.txt", "mine"));
  Save(folder, 2);
  Save(folder, 3, 0, /*keep=*/1);
  EXPECT_EQ(NamesIn(folder), "00000001 00000003");
}

TEST(LatestCheckpointTest, ARenamedOneIsPassedOver) {
  const std::string folder = FreshFolder("renamed");
  const std::string good = Save(folder, 1);
  fs::rename(Save(folder, 2), folder + "/step-00000009");
  EXPECT_EQ(*FindLatestCheckpoint(folder), good);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_EQ(*FindLatestCheckpoint(*rank, folder), good);
  });
  fs::remove_all(good);
  EXPECT_THAT(FindLatestCheckpoint(folder),
              StatusIs(absl::StatusCode::kNotFound, "is of step 2"));
}

TEST(LatestCheckpointTest, WhatIsNotOursIsNotReplaced) {
  const std::string folder = FreshFolder("foreign");
  const auto save = [&](const std::string& wanted) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
      const auto saved =
          SaveCheckpoint(*rank, Options(folder, 1, 0), Pieces(*rank, 0));
      if (wanted.empty()) {
        EXPECT_OK(saved);
      } else {
        EXPECT_THAT(saved,
                    StatusIs(absl::StatusCode::kFailedPrecondition, wanted));
      }
    });
  };
  const std::string path = folder + "/step-00000001";
  ASSERT_OK(MakeFolders(folder));
  ASSERT_OK(WriteFile(path, "mine"));
  save("is no folder");
  fs::remove(path);
  ASSERT_OK(MakeFolders(path));
  ASSERT_OK(WriteFile(path + "/notes.txt", "mine"));
  save("holds notes.txt");
  EXPECT_EQ(*ReadFile(path + "/notes.txt"), "mine");
  fs::remove(path + "/notes.txt");
  save("");
  fs::resize_file(path + "/rank-00000-of-00002.safetensors", 9);  // Damaged.
  save("");
  EXPECT_EQ(*FindLatestCheckpoint(folder), path);
}

// A byte that changed is found when all is read, and the one before counts.
TEST(LatestCheckpointTest, DamageOfTheLatestIsPassedOver) {
  const std::string folder = FreshFolder("flipped");
  const std::string good = Save(folder, 1, 1);
  const std::string shard = Save(folder, 2, 2) + "/rank-00001-of-00003";
  std::string bytes = *ReadFile(shard + ".safetensors");
  bytes.back() ^= 1;
  ASSERT_OK(WriteFile(shard + ".safetensors", bytes));
  for (const int world_size : {1, 2, 3}) {
    RunRanks(world_size, [&](const std::shared_ptr<Communicator>& rank) {
      const auto reader =
          CheckpointReader::OpenLatest(*rank, folder, "tiny model");
      ASSERT_OK(reader);
      EXPECT_EQ(reader->path(), good);
      const auto loaded = Pieces(*rank, 0);
      EXPECT_OK(reader->Read(*rank, loaded));
      ExpectSameValues(loaded, Pieces(*rank, 1));
      EXPECT_THAT(
          CheckpointReader::OpenLatest(*rank, folder, "large model"),
          StatusIs(absl::StatusCode::kFailedPrecondition, "step-00000002"));
    });
  }
  fs::remove_all(good);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_THAT(CheckpointReader::OpenLatest(*rank, folder, "tiny model"),
                StatusIs(absl::StatusCode::kNotFound, "its checksum is"));
  });
}

// After some exchanges the other ranks are gone.
class Deserted final : public FakeCommunicator {
 public:
  explicit Deserted(int num_exchanges)
      : FakeCommunicator({.rank = 0, .world_size = 1}), left_(num_exchanges) {}

  absl::StatusOr<std::vector<std::string>> AllGatherBytes(
      const std::string& value, std::string_view what) override {
    if (--left_ < 0) return absl::UnavailableError("rank 1 has vanished");
    return FakeCommunicator::AllGatherBytes(value, what);
  }

  int left() const { return left_; }

 private:
  int left_;
};

TEST(LatestCheckpointTest, ARankThatVanishesIsNoDamage) {
  const std::string folder = FreshFolder("deserted");
  for (const int64_t step : {1, 2, 3}) Save(folder, step);
  int num_failed = 0;
  for (;; ++num_failed) {
    Deserted rank(num_failed);
    const auto reader =
        CheckpointReader::OpenLatest(rank, folder, "tiny model");
    if (reader.ok()) break;
    EXPECT_THAT(reader, StatusIs(absl::StatusCode::kUnavailable, "vanished"));
    EXPECT_EQ(rank.left(), -1) << "went on after it";
  }
  EXPECT_GE(num_failed, 6);
}

}  // namespace
}  // namespace tessera
