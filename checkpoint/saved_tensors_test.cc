// Any part of any tensor comes out of a checkpoint, whatever pieces it lies in,
// and a file that is not what the manifest says is found before it is read.
#include "checkpoint/saved_tensors.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

std::string Save(const std::string& name, int num_ranks) {
  const std::string folder = FreshFolder(name);
  RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_OK(SaveCheckpoint(*rank, Options(folder, 1), Pieces(*rank, 0.5f)));
  });
  return *FindLatestCheckpoint(folder);
}

TEST(SavedTensorsTest, PartsOfPiecesMakeARange) {
  const ManifestTensor tensor = {
      DType::kFloat32, Shape{10}, {}, {{2, 0, 3}, {0, 3, 1}, {1, 4, 6}}};
  for (int64_t begin = 0; begin <= 10; ++begin) {
    for (int64_t length = 0; begin + length <= 10; ++length) {
      int64_t at = begin;
      for (const PartOfPiece& part : PiecesWithin(tensor, begin, length)) {
        EXPECT_EQ(part.begin, at);
        EXPECT_GT(part.length, 0);
        EXPECT_GE(part.begin, part.piece.begin);
        EXPECT_LE(part.begin + part.length,
                  part.piece.begin + part.piece.length);
        at += part.length;
      }
      EXPECT_EQ(at, begin + length);
    }
  }
}

// Slices of many tensors open each file once.
TEST(SavedTensorsTest, FilesStayOpen) {
  const auto saved = SavedTensors::Open(Save("open", 4));
  ASSERT_OK(saved);
  const SavedTensors copy = *saved;
  for (int64_t begin = 0; begin < 15; ++begin) {
    const Tensor into = Tensor::Empty(Shape{1});
    ASSERT_OK(copy.Read({{{"w", begin, into}}}));
    EXPECT_EQ(into.Item(), 0.5f + static_cast<float>(begin));
  }
  EXPECT_EQ(saved->num_opened(), 4);
}

TEST(SavedTensorsTest, AnyPartIsRead) {
  for (const int num_ranks : {1, 4, 8}) {
    const auto saved = SavedTensors::Open(Save("any", num_ranks));
    ASSERT_OK(saved);
    for (int64_t begin = 0; begin <= 15; ++begin) {
      for (int64_t length = 0; begin + length <= 15; ++length) {
        // In the middle of other memory, which stays as it is.
        const Tensor memory = Tensor::FromVector(
            std::vector<float>(length + 2, -1), {length + 2});
        const Tensor into =
            Tensor::View(memory.storage(), 1, Shape{length}, DType::kFloat32);
        ASSERT_OK(saved->Read({{{"w", begin, into}}}));
        const std::vector<float> values = memory.ToVector<float>();
        EXPECT_EQ(values.front(), -1);
        EXPECT_EQ(values.back(), -1);
        for (int64_t i = 0; i < length; ++i) {
          EXPECT_EQ(values[i + 1], 0.5f + static_cast<float>(begin + i));
        }
      }
    }
  }
}

TEST(SavedTensorsTest, WrongRangesAreRefused) {
  const auto saved = SavedTensors::Open(Save("wrong", 2));
  ASSERT_OK(saved);
  const Tensor three = Tensor::FromVector<float>({1, 2, 3}, {3});
  const Tensor integers = Tensor::FromVector<int32_t>({1}, {1});
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(saved->Read({{{"v", 0, three}}}),
              StatusIs(absl::StatusCode::kNotFound, "has no tensor \"v\""));
  EXPECT_THAT(saved->Read({{{"w", 13, three}}}),
              StatusIs(kInvalid, "wanted float32 elements 13 to 16"));
  EXPECT_THAT(saved->Read({{{"w", -1, three}}}), StatusIs(kInvalid, "\"w\""));
  EXPECT_THAT(saved->Read({{{"w", 0, integers}}}),
              StatusIs(kInvalid, "is float32 [5, 3], wanted int32"));
  EXPECT_EQ(three.ToVector<float>(), (std::vector<float>{1, 2, 3}));
}

// CKC-12: a file that is gone, is short, or holds other tensors.
TEST(SavedTensorsTest, AFileIsWhatTheManifestSays) {
  const std::string path = Save("files", 2);
  const auto saved = SavedTensors::Open(path);
  ASSERT_OK(saved);
  const std::string file = path + "/rank-00001-of-00002.safetensors";
  const std::string good = *ReadFile(file);
  const Tensor w = Tensor::FromVector(std::vector<float>(15, -1), {15});
  const auto expect = [&](absl::StatusCode code, const std::string& message) {
    EXPECT_THAT(saved->CheckReadable({{{"w", 0, w}}}),
                StatusIs(code, file + message));
    EXPECT_THAT(saved->Verify(1), StatusIs(code, file));
    EXPECT_OK(saved->Verify(0));
  };
  std::filesystem::resize_file(file, good.size() - 1);
  expect(absl::StatusCode::kDataLoss, ": has ");

  // As many bytes, and a name that is another.
  std::string moved = good;
  moved.replace(moved.find("\"w\""), 3, "\"v\"");
  ASSERT_OK(WriteFile(file, moved));
  EXPECT_THAT(saved->CheckReadable({{{"w", 0, w}}}),
              StatusIs(absl::StatusCode::kNotFound, "has no tensor \"w\""));
  EXPECT_THAT(saved->Verify(1),
              StatusIs(absl::StatusCode::kDataLoss, "its checksum is"));

  std::filesystem::remove(file);
  EXPECT_THAT(saved->CheckReadable({{{"w", 0, w}}}),
              StatusIs(absl::StatusCode::kNotFound, file));
  // What is wanted lies in the other file.
  const Tensor first = Tensor::FromVector<float>({0, 0}, {2});
  EXPECT_OK(saved->CheckReadable({{{"w", 0, first}}}));
  EXPECT_EQ(w.ToVector<float>(), std::vector<float>(15, -1));
}

}  // namespace
}  // namespace tessera
