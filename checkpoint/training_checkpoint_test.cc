// What was saved comes back bit for bit on any number of ranks, and what is
// wrong with a checkpoint is the same error on every rank.
#include "checkpoint/training_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

TEST(TrainingCheckpointTest, AnotherModelIsOneErrorOnAllRanks) {
  const std::string path = Save(FreshFolder("other"), 1);
  EXPECT_THAT(LoadStatus(3, path, "large model"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "saved tiny model, this run has large model"));
}

TEST(TrainingCheckpointTest, AnyNumberOfRanksLoadsWhatAnyNumberSaved) {
  for (const int savers : {1, 2, 3, 5, 8}) {
    const std::string folder = FreshFolder("resharded");
    RunRanks(savers, [&](const std::shared_ptr<Communicator>& rank) {
      EXPECT_OK(SaveCheckpoint(*rank, Options(folder, 1), Pieces(*rank, 0.1f)));
    });
    const std::string path = *FindLatestCheckpoint(folder);
    for (const int loaders : {1, 2, 3, 4, 5, 8, 20}) {
      RunRanks(loaders, [&](const std::shared_ptr<Communicator>& rank) {
        const auto loaded = Pieces(*rank, 100);
        EXPECT_OK(Load(*rank, path, loaded));
        ExpectSameValues(loaded, Pieces(*rank, 0.1f));
      });
    }
  }
}

// All that is wrong is said at once, and some of it can be meant so.
TEST(TrainingCheckpointTest, OtherTensorsAreOneErrorAndChangeNothing) {
  const std::string path = Save(FreshFolder("tensors"), 1);
  using Tensors = std::vector<CheckpointTensor>;
  const auto load = [&](const ReadOptions& options, const auto& change,
                        const auto& expect) {
    RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
      Tensors into = Pieces(*rank, 50);
      change(into);
      const auto reader = CheckpointReader::Open(*rank, path, "tiny model");
      ASSERT_OK(reader);
      expect(*rank, reader->Read(*rank, into, options), into);
    });
  };
  const auto refused = [&](const std::string& message, const auto& change) {
    load({}, change,
         [&](Communicator& rank, const absl::Status& status, Tensors& into) {
           EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "rank 0: " + path + ": " + message));
           Tensors before = Pieces(rank, 50);
           change(before);
           ExpectSameValues(into, before);
         });
  };
  refused("has no tensor v; holds, which this run lacks, w",
          [](Tensors& t) { t[0].name = "v"; });
  refused("holds, which this run lacks, b, scalar", [](Tensors& t) {
    t.pop_back();
    t.pop_back();
  });
  refused("differs in w is float32 [5, 3], wanted float32 [3, 5]",
          [](Tensors& t) {
            t[0].global_shape = Shape({3, 5});
          });
  refused(
      "differs in w is float32 [5, 3], wanted float32 [5, 3] in the order "
      "of dims 1, 0",
      [](Tensors& t) {
        t[0].order = {1, 0};
      });

  const auto other = [](Tensors& t) {
    t[0].name = "v";
    t[1].global_shape = Shape({1, 2});
  };
  load({.ignore_missing = true,
        .ignore_unexpected = true,
        .ignore_mismatched = true},
       other, [&](Communicator& rank, const absl::Status& status, Tensors& t) {
         EXPECT_OK(status);
         EXPECT_EQ(t[0].tensor.ToVector<float>(),
                   Pieces(rank, 50)[0].tensor.ToVector<float>());
         EXPECT_EQ(t[1].tensor.ToVector<float>(),
                   Pieces(rank, 50)[1].tensor.ToVector<float>());
         EXPECT_EQ(t[2].tensor.ToVector<float>(),
                   Pieces(rank, 0)[2].tensor.ToVector<float>());
       });
  const auto nothing = [](Tensors& t) {
    for (CheckpointTensor& one : t) one.name += ".old";
  };
  load({.ignore_missing = true, .ignore_unexpected = true}, nothing,
       [](Communicator&, const absl::Status& status, Tensors&) {
         EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "has nothing of what this run wants"));
       });
}

TEST(TrainingCheckpointTest, WhatOneRankLacksIsEveryRanksError) {
  const std::string path = Save(FreshFolder("one"), 1);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    std::vector<CheckpointTensor> into = Pieces(*rank, 50);
    if (rank->rank() == 1) into[1].name = "w";
    EXPECT_THAT(Load(*rank, path, into),
                StatusIs(absl::StatusCode::kInvalidArgument, "rank 1: "));
    if (rank->rank() != 1) ExpectSameValues(into, Pieces(*rank, 50));
  });
}

// CKC-15: each byte once, and no rank writes more than its share.
TEST(TrainingCheckpointTest, ReplicasShareTheWork) {
  const std::string folder = FreshFolder("replicas");
  RunRanks(4, [&](const std::shared_ptr<Communicator>& rank) {
    std::vector<CheckpointTensor> all;
    for (int i = 0; i < 10; ++i) {
      std::vector<float> values(1001);
      for (size_t j = 0; j < values.size(); ++j) values[j] = i + 0.5f * j;
      all.push_back({absl::StrCat("t", i),
                     Tensor::FromVector(values, {1001}),
                     Shape{7, 143},
                     0,
                     {},
                     4,
                     rank->rank()});
      all.push_back({absl::StrCat("step", i),
                     Tensor::FromVector<int64_t>({i}, {1}),
                     Shape{},
                     0,
                     {},
                     4,
                     rank->rank()});
    }
    // Of a running mean, each rank has its own.
    const auto mean = Tensor::FromVector(
        std::vector<float>(8, static_cast<float>(rank->rank())), {8});
    all.push_back({"mean", mean, Shape{8}, 0, {}, 4, rank->rank(), true});
    const auto path = SaveCheckpoint(*rank, Options(folder, 1), all);
    ASSERT_OK(path);
    std::vector<CheckpointTensor> loaded;
    for (const CheckpointTensor& t : all) {
      loaded.push_back(t);
      loaded.back().tensor = Tensor::Empty(
          t.tensor.shape(), {t.tensor.dtype(), t.tensor.device()});
    }
    EXPECT_OK(Load(*rank, *path, loaded));
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      EXPECT_EQ(all[i].tensor.ToDoubles(), loaded[i].tensor.ToDoubles());
    }
    EXPECT_EQ(loaded.back().tensor.ToDoubles(), std::vector<double>(8, 0.0));
  });
  const Manifest manifest = *ReadManifest(*FindLatestCheckpoint(folder));
  std::vector<int64_t> written(4);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      written[piece.file] += piece.length * ElementBytes(tensor.dtype);
    }
  }
  constexpr int64_t kOneCopy = 10 * 1001 * 4 + 10 * 8 + 8 * 4;
  EXPECT_EQ(std::accumulate(written.begin(), written.end(), int64_t{0}),
            kOneCopy);
  EXPECT_LE(*std::max_element(written.begin(), written.end()),
            kOneCopy / 4 + 1001 * 4 / 4);
}

TEST(TrainingCheckpointTest, EachElementIsSavedOnce) {
  const std::string folder = FreshFolder("once");
  const auto expect = [&](int64_t shift, const std::string& message) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
      const int64_t begin = rank->rank() == 0 ? 0 : 3 + shift;
      const auto values = Tensor::FromVector<float>({1, 2, 3}, {3});
      EXPECT_THAT(SaveCheckpoint(*rank, Options(folder, 1),
                                 {{{"w", values, Shape{7}, begin}}}),
                  StatusIs(absl::StatusCode::kInvalidArgument, message));
    });
  };
  expect(-1,
         "of all ranks together tensor \"w\" has a piece of 3 elements at 2");
  expect(0, "has pieces of 6 elements and is [7]");
  expect(1, "has a piece of 3 elements at 4 behind 3");
  EXPECT_FALSE(FindLatestCheckpoint(folder).ok());
}

// CKC-09, CKC-11: neither padding nor the memory around a piece is saved.
TEST(TrainingCheckpointTest, FilesHoldPiecesAndNothingElse) {
  const std::string folder = FreshFolder("bytes");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    const Tensor unit = Tensor::Empty(Shape{1 << 18});
    const Tensor piece = Tensor::View(unit.storage(), 1000 * (rank->rank() + 1),
                                      Shape{25}, DType::kFloat32);
    std::fill_n(piece.data<float>(), 25, 1.0f);
    EXPECT_OK(SaveCheckpoint(*rank, Options(folder, 1),
                             {{{"w", piece, Shape{50}, 25 * rank->rank()}}}));
  });
  const Manifest manifest = *ReadManifest(*FindLatestCheckpoint(folder));
  for (const ManifestFile& file : manifest.files) {
    EXPECT_LT(file.num_bytes, 25 * 4 + 200);
  }
}

// CKC-05.
TEST(TrainingCheckpointTest, NamesStayAsTheyAre) {
  const std::string folder = FreshFolder("names");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    auto tensors = Pieces(*rank, 1);
    tensors[0].name = "model.module._orig_mod._fsdp_wrapped_module.w";
    tensors[1].name = "model.\xce\xb2 \"x\"\n.module.b";
    ASSERT_OK(SaveCheckpoint(*rank, Options(folder, 1), tensors));
    EXPECT_OK(Load(*rank, *FindLatestCheckpoint(folder), tensors));
  });
}

TEST(TrainingCheckpointTest, TextThatIsNoUtf8IsOneError) {
  const std::string folder = FreshFolder("text");
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    // Of a tensor with elements here, and of one without.
    auto tensors = Pieces(*rank, 0);
    tensors[0].name = "\xff";
    EXPECT_THAT(SaveCheckpoint(*rank, Options(folder, 1), tensors),
                StatusIs(absl::StatusCode::kInvalidArgument, "is no UTF-8"));
    std::vector<CheckpointTensor> empty = {
        {"\xff", Tensor::Empty(Shape{0}), Shape{0}, 0}};
    EXPECT_THAT(SaveCheckpoint(*rank, Options(folder, 1), empty),
                StatusIs(absl::StatusCode::kInternal, "rank 0: "));
    SaveOptions options = Options(folder, 1);
    options.state.values["text"] = "\xff\xfe";
    EXPECT_THAT(SaveCheckpoint(*rank, options, Pieces(*rank, 0)),
                StatusIs(absl::StatusCode::kInternal, "rank 0: "));
  });
}

// CKC-14.
TEST(TrainingCheckpointTest, GroupsSaveTheirOwnModels) {
  const std::string folder = FreshFolder("groups");
  RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
    const int first = world->rank() / 2 * 2;
    const auto group = world->Split({first, first + 1}, "pair");
    ASSERT_OK(group);
    const auto path =
        SaveCheckpoint(**group, Options(absl::StrCat(folder, first), 1),
                       Pieces(**group, static_cast<float>(first)));
    ASSERT_OK(path);
    const auto loaded = Pieces(**group, 9);
    EXPECT_OK(Load(**group, *path, loaded));
    ExpectSameValues(loaded, Pieces(**group, static_cast<float>(first)));
  });
}

// CKC-07: hosts with a disk each, where ranks 0 and 3 share one.
TEST(TrainingCheckpointTest, EachHostCanHaveItsOwnDisk) {
  const std::string disks[] = {FreshFolder("disk0"), FreshFolder("disk1"),
                               FreshFolder("disk2")};
  RunRanks(4, [&](const std::shared_ptr<Communicator>& rank) {
    const std::string& disk = disks[rank->rank() % 3];
    for (const int64_t step : {1, 2, 2, 3}) {
      ASSERT_OK(SaveCheckpoint(*rank, Options(disk, step, /*keep=*/2),
                               Pieces(*rank, static_cast<float>(step))));
    }
    const auto path = FindLatestCheckpoint(*rank, disk);
    ASSERT_OK(path);
    EXPECT_EQ(*path, disk + "/step-00000003");
    const auto loaded = Pieces(*rank, 0);
    EXPECT_OK(Load(*rank, *path, loaded));
    ExpectSameValues(loaded, Pieces(*rank, 3));
  });
  for (const std::string& disk : disks) {
    EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 2) << disk;
  }
  RunRanks(2, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_THAT(Load(*rank, disks[0] + "/step-00000003", Pieces(*rank, 0)),
                StatusIs(absl::StatusCode::kNotFound, "rank-00002-of-00004"));
  });
}

// A save that was killed leaves files on the disks of all hosts.
TEST(TrainingCheckpointTest, TheNextSaveCleansTheDiskOfEachHost) {
  const std::string disks[] = {FreshFolder("left0"), FreshFolder("left1")};
  for (const std::string& disk : disks) {
    for (const char* left : {"/step-00000001.tmp", "/step-00000002.tmp"}) {
      ASSERT_OK(MakeFolders(disk + left));
      ASSERT_OK(WriteFile(disk + left + "/leader-of-old", ""));
      ASSERT_OK(WriteFile(disk + left + "/rank-00007-of-00008.safetensors",
                          "left behind"));
    }
  }
  RunRanks(4, [&](const std::shared_ptr<Communicator>& rank) {
    ASSERT_OK(SaveCheckpoint(*rank, Options(disks[rank->rank() % 2], 2),
                             Pieces(*rank, 1)));
  });
  for (const std::string& disk : disks) {
    EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 1) << disk;
    // Two ranks' files and the manifest.
    EXPECT_EQ(
        std::distance(fs::directory_iterator(disk + "/step-00000002"), {}), 3)
        << disk;
  }
}

// CKD-06: what rank 0 sees counts, and the end is an error and no hang.
TEST(TrainingCheckpointTest, ARankThatSeesOtherFilesIsAnError) {
  const std::string folder = FreshFolder("seen");
  const std::string path = Save(folder, 1);
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    const bool blind = rank->rank() == 1;
    const std::string seen = blind ? folder + "-none" : folder;
    const auto latest = FindLatestCheckpoint(*rank, seen);
    EXPECT_OK(latest);
    EXPECT_THAT(Load(*rank, *latest, Pieces(*rank, 0)),
                StatusIs(absl::StatusCode::kNotFound, "rank 1: "));
    const bool first_is_blind = rank->rank() == 0;
    EXPECT_THAT(
        FindLatestCheckpoint(*rank, first_is_blind ? folder + "-none" : folder),
        StatusIs(absl::StatusCode::kNotFound, "no complete"));
  });
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

}  // namespace
}  // namespace tessera
