// A folder that is written file by file: the old model stays until the new one
// is whole.
#include "checkpoint/huggingface/folder_writer.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Names = std::set<std::string>;

class FolderWriterTest : public ::testing::Test {
 protected:
  FolderWriterTest()
      : folder_(absl::StrCat(::testing::TempDir(), "/writer_",
                             std::string(::testing::UnitTest::GetInstance()
                                             ->current_test_info()
                                             ->name()))) {
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<FolderWriter> Start(int64_t max_bytes) const {
    auto writer = FolderWriter::Create(folder_,
                                       {{"a", DType::kFloat32, {2}},
                                        {"b", DType::kFloat32, {2}},
                                        {"c", DType::kFloat32, {2}}},
                                       max_bytes);
    EXPECT_OK(writer);
    return *std::move(writer);
  }

  static Tensor Pair(float value) {
    return Tensor::FromVector<float>({value, value}, {2});
  }

  // A model whose tensors are all `value`.
  void WriteAll(int64_t max_bytes, float value) const {
    const auto writer = Start(max_bytes);
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_OK(writer->Write(name, Pair(value)));
    }
    ASSERT_OK(writer->Finish({{"config.json", "{}"}}));
  }

  void ExpectHolds(float value) const {
    const auto weights = OpenFolderWeights(folder_);
    ASSERT_OK(weights);
    EXPECT_TRUE(weights->warnings.empty());
    EXPECT_EQ(weights->source->weights().size(), 3u);
    for (const char* name : {"a", "b", "c"}) {
      const auto tensor =
          weights->source->ReadElements(name, 0, 2, CpuDevice());
      ASSERT_OK(tensor);
      EXPECT_EQ(tensor->ToVector<float>(), (std::vector<float>{value, value}));
    }
  }

  Names Files() const {
    Names names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  const std::string folder_;
};

const char* const kIndex = "model.safetensors.index.json";

TEST_F(FolderWriterTest, OneFileOrMany) {
  WriteAll(100, 1);
  EXPECT_EQ(Files(), (Names{"config.json", "model.safetensors"}));
  ExpectHolds(1);
  std::filesystem::remove_all(folder_);
  WriteAll(16, 2);
  EXPECT_EQ(Files(),
            (Names{"config.json", kIndex, "model-00001-of-00002.safetensors",
                   "model-00002-of-00002.safetensors"}));
  ExpectHolds(2);
}

// Every way of writing over every other leaves only the new model.
TEST_F(FolderWriterTest, ANewModelReplacesTheOldOne) {
  float value = 0;
  for (const int64_t before : {100, 16, 8}) {
    for (const int64_t after : {100, 16, 8}) {
      std::filesystem::remove_all(folder_);
      WriteAll(before, ++value);
      ASSERT_OK(WriteFile(folder_ + "/tokenizer.json", "{}"));
      WriteAll(after, ++value);
      ExpectHolds(value);
      const size_t num_weights = after == 100 ? 1 : after == 16 ? 3 : 4;
      EXPECT_EQ(Files().size(), num_weights + 2);
      EXPECT_EQ(Files().count("tokenizer.json"), 1u);
    }
  }
  // Files of the same number had to have other names.
  WriteAll(8, 50);
  EXPECT_EQ(Files().count("model-00001-of-00003.safetensors") +
                Files().count("model-2-00001-of-00003.safetensors"),
            1u);
}

// Until the last step, readers see the old model; a writer that goes leaves
// nothing.
TEST_F(FolderWriterTest, TheOldModelStaysUntilTheEnd) {
  for (const int64_t before : {100, 8}) {
    for (const int64_t after : {100, 8}) {
      std::filesystem::remove_all(folder_);
      WriteAll(before, 1);
      const Names files = Files();
      {
        const auto writer = Start(after);
        for (const char* name : {"c", "a", "b"}) {
          ASSERT_OK(writer->Write(name, Pair(2)));
          ExpectHolds(1);
        }
      }
      ExpectHolds(1);
      EXPECT_EQ(Files(), files);
    }
  }
}

// A save that was killed leaves files that no index names.
TEST_F(FolderWriterTest, LeftoversAreNeverReadAndGoInTheEnd) {
  WriteAll(8, 1);
  ASSERT_OK(WriteFile(folder_ + "/model-2-00001-of-00003.safetensors", "cut"));
  ASSERT_OK(WriteFile(folder_ + "/model-00001-of-00009.safetensors", "cut"));
  ExpectHolds(1);
  WriteAll(8, 2);
  ExpectHolds(2);
  EXPECT_EQ(Files().size(), 5u);
}

TEST_F(FolderWriterTest, ErrorsNameFolderAndTensor) {
  const auto writer = Start(8);
  EXPECT_THAT(writer->Write("d", Pair(1)),
              StatusIs(absl::StatusCode::kNotFound,
                       folder_ + ": tensor \"d\" was not announced"));
  ASSERT_OK(writer->Write("a", Pair(1)));
  EXPECT_THAT(writer->Write("a", Pair(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "tensor \"a\" was written already"));
  EXPECT_THAT(writer->Write("b", Tensor::FromVector<float>({1}, {1})),
              StatusIs(absl::StatusCode::kInvalidArgument, "announced as [2]"));
  EXPECT_THAT(writer->Finish({}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "0 of 1 tensors were written"));
  EXPECT_THAT(FolderWriter::Create(folder_, {}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "got 0"));
  EXPECT_THAT(
      FolderWriter::Create(
          folder_, {{"a", DType::kFloat32, {2}}, {"a", DType::kFloat32, {2}}},
          9),
      StatusIs(absl::StatusCode::kInvalidArgument, "stands twice"));
  ASSERT_OK(WriteFile(folder_ + "/file", ""));
  EXPECT_FALSE(FolderWriter::Create(folder_ + "/file", {}, 9).ok());
}

TEST_F(FolderWriterTest, AModelWithoutTensors) {
  auto writer = FolderWriter::Create(folder_, {}, 9);
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Finish({}));
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  EXPECT_TRUE(weights->source->weights().empty());
}

}  // namespace
}  // namespace tessera
