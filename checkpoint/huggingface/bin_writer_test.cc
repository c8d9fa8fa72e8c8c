// Weights written as files of torch are found again as a folder's weights.
#include "checkpoint/huggingface/bin_writer.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAre;

std::vector<TensorSpec> FourTensors() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 4; ++i) {
    specs.push_back({absl::StrCat("w", i), DType::kFloat32, {5, 2}});
  }
  return specs;
}

Tensor Numbers(int first) {
  std::vector<float> values(10);
  for (int i = 0; i < 10; ++i) values[i] = static_cast<float>(first + i);
  return Tensor::FromVector(values, Shape{5, 2});
}

std::vector<std::string> WriteAndList(const std::string& folder,
                                      int64_t max_shard_bytes) {
  fs::remove_all(folder);
  auto writer = BinWriter::Create(folder, FourTensors(), max_shard_bytes);
  EXPECT_OK(writer);
  for (int i = 3; i >= 0; --i) {
    EXPECT_OK(writer->Write(absl::StrCat("w", i), Numbers(10 * i)));
  }
  EXPECT_OK(writer->Finish());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

void ExpectTheWeights(const std::string& folder) {
  const auto weights = OpenFolderWeights(folder);
  ASSERT_OK(weights);
  EXPECT_TRUE(weights->warnings.empty());
  EXPECT_EQ(weights->source->weights().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const auto tensor =
        weights->source->ReadElements(absl::StrCat("w", i), 0, 10, CpuDevice());
    ASSERT_OK(tensor);
    EXPECT_EQ(tensor->ToDoubles(), Numbers(10 * i).ToDoubles());
  }
}

TEST(BinWriterTest, OneFileNeedsNoIndex) {
  const std::string folder = testing::TempDir() + "/one";
  EXPECT_THAT(WriteAndList(folder, 1000),
              UnorderedElementsAre("pytorch_model.bin"));
  ExpectTheWeights(folder);
}

TEST(BinWriterTest, SeveralFilesHaveAnIndex) {
  const std::string folder = testing::TempDir() + "/several";
  EXPECT_THAT(WriteAndList(folder, 80),
              UnorderedElementsAre("pytorch_model-00001-of-00002.bin",
                                   "pytorch_model-00002-of-00002.bin",
                                   "pytorch_model.bin.index.json"));
  ExpectTheWeights(folder);
}

// As many files as before, fewer, more, and after safetensors.
TEST(BinWriterTest, NewWeightsTakeThePlaceOfOldOnes) {
  const std::string folder = testing::TempDir() + "/again";
  fs::remove_all(folder);
  ASSERT_OK(MakeFolders(folder));
  ASSERT_OK(WriteFile(folder + "/model.safetensors", "old"));
  ASSERT_OK(WriteFile(folder + "/config.json", "stays"));
  for (const int64_t max_shard_bytes : {80, 80, 1000, 1000, 40, 80}) {
    auto writer = BinWriter::Create(folder, FourTensors(), max_shard_bytes);
    ASSERT_OK(writer);
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(writer->Write(absl::StrCat("w", i), Numbers(10 * i)));
    }
    ASSERT_OK(writer->Finish());
    ExpectTheWeights(folder);
    const int64_t num_files =
        max_shard_bytes == 1000 ? 1 : 160 / max_shard_bytes + 1;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), num_files + 1);
  }
}

TEST(BinWriterTest, WithoutAnEndTheOldWeightsStay) {
  const std::string folder = testing::TempDir() + "/kept";
  const auto names = WriteAndList(folder, 80);
  {
    auto writer = BinWriter::Create(folder, FourTensors(), 80);
    ASSERT_OK(writer);
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(writer->Write(absl::StrCat("w", i), Numbers(7)));
    }
    const BinWriter moved = *std::move(writer);
  }
  {
    auto writer = BinWriter::Create(folder, FourTensors(), 80);
    ASSERT_OK(writer);
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(writer->Write(absl::StrCat("w", i), Numbers(7)));
    }
    EXPECT_FALSE(writer->Finish().ok());  // One file is whole.
  }
  ExpectTheWeights(folder);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}),
            static_cast<ptrdiff_t>(names.size()));
}

TEST(BinWriterTest, WhatIsMissingIsSaid) {
  const std::string folder = testing::TempDir() + "/missing";
  fs::remove_all(folder);
  auto writer = BinWriter::Create(folder, FourTensors(), 80);
  ASSERT_OK(writer);
  EXPECT_THAT(
      writer->Write("w9", Numbers(0)),
      StatusIs(absl::StatusCode::kNotFound, "\"w9\" was not announced"));
  ASSERT_OK(writer->Write("w0", Numbers(0)));
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "\"w1\": wrote 0 of 40 bytes"));
  EXPECT_FALSE(fs::exists(folder + "/pytorch_model.bin.index.json"));
}

}  // namespace
}  // namespace tessera
