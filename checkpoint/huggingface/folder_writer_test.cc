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

class FolderWriterTest : public ::testing::TestWithParam<FolderFormat> {
 protected:
  FolderWriterTest()
      : folder_(absl::StrCat(::testing::TempDir(), "/writer_",
                             WholeFileName(GetParam()))) {
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<FolderWriter> Start(int64_t max_bytes) const {
    auto writer = FolderWriter::Create(folder_,
                                       {{"a", DType::kFloat32, {2}},
                                        {"b", DType::kFloat32, {2}},
                                        {"c", DType::kFloat32, {2}}},
                                       {max_bytes, GetParam()});
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

  static std::string Whole() { return WholeFileName(GetParam()); }
  static std::string Index() { return IndexFileName(GetParam()); }
  // "model-00002-of-00003.safetensors", or what stands for it.
  static std::string Shard(size_t i, size_t n, const std::string& tag = "") {
    return WeightFileName(GetParam(), i - 1, n, tag);
  }

  void ExpectHolds(float value) const {
    const auto weights = OpenFolderWeights(folder_, GetParam());
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

INSTANTIATE_TEST_SUITE_P(All, FolderWriterTest,
                         ::testing::Values(FolderFormat::kSafetensors,
                                           FolderFormat::kTorch));

TEST_P(FolderWriterTest, OneFileOrMany) {
  WriteAll(100, 1);
  EXPECT_EQ(Files(), (Names{"config.json", Whole()}));
  ExpectHolds(1);
  std::filesystem::remove_all(folder_);
  WriteAll(16, 2);
  EXPECT_EQ(Files(), (Names{"config.json", Index(), Shard(1, 2), Shard(2, 2)}));
  ExpectHolds(2);
}

// Every way of writing over every other leaves only the new model.
TEST_P(FolderWriterTest, ANewModelReplacesTheOldOne) {
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
  EXPECT_EQ(Files().count(Shard(1, 3)) + Files().count(Shard(1, 3, "2")), 1u);
}

// Until the last step, readers see the old model; a writer that goes leaves
// nothing.
TEST_P(FolderWriterTest, TheOldModelStaysUntilTheEnd) {
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
TEST_P(FolderWriterTest, LeftoversAreNeverReadAndGoInTheEnd) {
  WriteAll(8, 1);
  ASSERT_OK(WriteFile(folder_ + "/" + Shard(1, 3, "2"), "cut"));
  ASSERT_OK(WriteFile(folder_ + "/" + Shard(1, 9), "cut"));
  for (const std::string& name :
       {Whole(), Index(), Shard(2, 3), std::string("config.json")}) {
    ASSERT_OK(WriteFile(absl::StrCat(folder_, "/", name, ".999999.0.tmp"), ""));
  }
  ExpectHolds(1);
  WriteAll(8, 2);
  ExpectHolds(2);
  EXPECT_EQ(Files().size(), 5u);
}

// CKC-06: what merge_weights wrote in one format stays beside the other, and so
// do a user's own files whose names only look like ours.
TEST_P(FolderWriterTest, OtherPeoplesFilesStay) {
  const FolderFormat other = GetParam() == FolderFormat::kTorch
                                 ? FolderFormat::kSafetensors
                                 : FolderFormat::kTorch;
  ASSERT_OK(MakeFolders(folder_));
  const Names own = {"model-2.safetensors", "pytorch_model-7.bin", "notes.tmp",
                     "a.bin.999999.0.tmp"};
  const Names others = {WholeFileName(other), IndexFileName(other),
                        WeightFileName(other, 0, 2)};
  for (const Names& names : {own, others}) {
    for (const std::string& name : names) {
      ASSERT_OK(WriteFile(folder_ + "/" + name, name));
    }
  }
  for (const int64_t max_bytes : {8, 100}) {
    WriteAll(max_bytes, 1);
    for (const Names& names : {own, others}) {
      for (const std::string& name : names) {
        const auto text = ReadFile(folder_ + "/" + name);
        ASSERT_OK(text);
        EXPECT_EQ(*text, name);
      }
    }
  }
  const auto writer = FolderWriter::Create(
      folder_, {}, {.format = GetParam(), .replace_other_format = true});
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Finish({}));
  Names left = own;
  left.insert({Whole(), "config.json"});
  EXPECT_EQ(Files(), left);
}

// Where no text changes, none is written; where one does, all fit the weights.
TEST_P(FolderWriterTest, TextsChangeWithTheWeights) {
  const auto write = [&](const std::map<std::string, std::string>& texts) {
    const auto writer = FolderWriter::Create(folder_, {}, {9, GetParam()});
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->Finish(texts));
  };
  const std::string config = folder_ + "/config.json";
  write({{"config.json", "1"}, {"tokenizer.json", "1"}});
  const auto written = std::filesystem::last_write_time(config);
  write({{"config.json", "1"}, {"tokenizer.json", "1"}});
  EXPECT_EQ(std::filesystem::last_write_time(config), written);
  write({{"config.json", "1"}, {"tokenizer.json", "2"}});
  EXPECT_EQ(std::filesystem::last_write_time(config), written);
  EXPECT_EQ(*ReadFile(folder_ + "/tokenizer.json"), "2");
  ASSERT_OK(WriteFile(config + ".replaced", "left by a kill"));
  write({{"config.json", "3"}});
  EXPECT_EQ(*ReadFile(config), "3");
  EXPECT_EQ(Files(), (Names{"config.json", "tokenizer.json", Whole()}));
}

// Before anything of the folder has changed.
TEST_P(FolderWriterTest, ATextThatCannotBeWrittenIsAnError) {
  WriteAll(100, 1);
  const Names files = Files();
  {
    const auto writer = Start(8);
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_OK(writer->Write(name, Pair(2)));
    }
    EXPECT_FALSE(
        writer->Finish({{"config.json", "2"}, {"no/such/folder", ""}}).ok());
  }
  ExpectHolds(1);
  EXPECT_EQ(*ReadFile(folder_ + "/config.json"), "{}");
  EXPECT_EQ(Files(), files);
}

TEST_P(FolderWriterTest, ErrorsNameFolderAndTensor) {
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
  EXPECT_THAT(FolderWriter::Create(folder_, {}, {0}),
              StatusIs(absl::StatusCode::kInvalidArgument, "got 0"));
  EXPECT_THAT(
      FolderWriter::Create(
          folder_, {{"a", DType::kFloat32, {2}}, {"a", DType::kFloat32, {2}}},
          {9}),
      StatusIs(absl::StatusCode::kInvalidArgument, "stands twice"));
  ASSERT_OK(WriteFile(folder_ + "/file", ""));
  EXPECT_FALSE(FolderWriter::Create(folder_ + "/file", {}, {9}).ok());
}

TEST_P(FolderWriterTest, AModelWithoutTensors) {
  auto writer = FolderWriter::Create(folder_, {}, {9, GetParam()});
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Finish({}));
  const auto weights = OpenFolderWeights(folder_, GetParam());
  ASSERT_OK(weights);
  EXPECT_TRUE(weights->source->weights().empty());
}

}  // namespace
}  // namespace tessera
