// What a rank writes follows from what it keeps, and its file says so.
#include "checkpoint/rank_file.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

CheckpointTensor Floats(const std::string& name, int64_t length,
                        int64_t whole) {
  std::vector<float> values(length);
  for (int64_t i = 0; i < length; ++i) values[i] = static_cast<float>(i);
  return {name, Tensor::FromVector(values, {length}), Shape{whole}, 0};
}

TEST(RankFileTest, ReplicasPartWhatTheyKeep) {
  for (const int64_t length : {0, 1, 5, 7, 64}) {
    for (const int num_replicas : {1, 2, 3, 8}) {
      std::vector<int> covered(length);
      for (int replica = 0; replica < num_replicas; ++replica) {
        std::vector<CheckpointTensor> tensors = {Floats("other", 3, 3),
                                                 Floats("w", length, 100)};
        tensors[1].begin = 20;
        tensors[1].num_replicas = num_replicas;
        tensors[1].replica = replica;
        const auto pieces = PiecesToWrite(tensors);
        ASSERT_OK(pieces);
        const HostPiece& piece = pieces->at(1);
        EXPECT_LE(piece.length, length / num_replicas + 1);
        for (int64_t i = 0; i < piece.length; ++i) {
          const int64_t at = piece.begin - 20 + i;
          ++covered.at(at);
          EXPECT_EQ(static_cast<const float*>(piece.data)[i],
                    static_cast<float>(at));
        }
      }
      EXPECT_EQ(covered, std::vector<int>(length, 1));
    }
  }
}

TEST(RankFileTest, WrongPiecesAreRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PiecesToWrite({{Floats("w", 1, 1), Floats("w", 1, 1)}}),
              StatusIs(kInvalid, "\"w\" is given twice"));
  EXPECT_THAT(PiecesToWrite({{Floats("w", 3, 2)}}),
              StatusIs(kInvalid, "a piece of 3 elements from 0 on"));
  CheckpointTensor strided = Floats("w", 6, 6);
  strided.tensor =
      Tensor::View(strided.tensor.storage(), 0, Shape{2, 3}, DType::kFloat32)
          .Transpose(0, 1);
  EXPECT_THAT(PiecesToWrite({{strided}}), StatusIs(kInvalid, "contiguous"));
}

TEST(RankFileTest, AFileHoldsItsPiecesAndSaysSo) {
  const std::string folder = ::testing::TempDir() + "/rank_file";
  ASSERT_OK(MakeFolders(folder));
  std::vector<CheckpointTensor> tensors = {
      Floats("large", 5'000'000, 5'000'000), Floats("none", 0, 4),
      Floats("b", 2, 9)};
  tensors[2].begin = 7;
  tensors[2].order = {1, 0};
  const auto pieces = PiecesToWrite(tensors);
  ASSERT_OK(pieces);
  SaveProgress progress;
  const auto manifest = WriteRankFile(folder, "file", *pieces, &progress);
  ASSERT_OK(manifest);
  EXPECT_EQ(progress.bytes_written, 20'000'008);
  EXPECT_EQ(progress.num_bytes, 20'000'008);
  ASSERT_EQ(manifest->files.size(), 1u);
  EXPECT_EQ(manifest->files[0].name, "file");
  const std::string path = folder + "/file";
  EXPECT_EQ(manifest->files[0].checksum, *FileChecksum(path));
  EXPECT_EQ(manifest->files[0].num_bytes,
            ReadableFile::Open(path)->num_bytes());
  EXPECT_EQ(manifest->tensors.at("b"),
            (ManifestTensor{DType::kFloat32, Shape{9}, {1, 0}, {{0, 7, 2}}}));
  EXPECT_TRUE(manifest->tensors.at("none").pieces.empty());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_OK(file);
  EXPECT_EQ(file->names().size(), 2u);
  EXPECT_EQ(file->Read("large")->ToVector<float>(),
            tensors[0].tensor.ToVector<float>());
  EXPECT_EQ(file->Read("b")->ToVector<float>(), (std::vector<float>{0, 1}));
}

// CKD-08: no rank asks another, so that thousands of them cost nothing.
TEST(RankFileTest, PlanningTakesNoTime) {
  std::vector<CheckpointTensor> tensors;
  for (int i = 0; i < 10000; ++i) {
    tensors.push_back(Floats(absl::StrCat("layer.", i, ".weight"), 100, 4096));
    tensors.back().num_replicas = 4096;
    tensors.back().replica = 4000;
  }
  const absl::Time start = absl::Now();
  ASSERT_OK(PiecesToWrite(tensors));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

}  // namespace
}  // namespace tessera
