// A folder's weights: which files are taken, and how they must fit together.
#include "checkpoint/huggingface/folder_weights.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Strings = std::vector<std::string>;

class FolderWeightsTest : public ::testing::Test {
 protected:
  FolderWeightsTest()
      : folder_(absl::StrCat(::testing::TempDir(), "/",
                             std::string(::testing::UnitTest::GetInstance()
                                             ->current_test_info()
                                             ->name()))) {
    std::filesystem::remove_all(folder_);
    EXPECT_OK(MakeFolders(folder_));
  }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }

  // A file with these tensors, each two floats: `value` and `value` + 1.
  void WriteTensors(const std::string& file, const Strings& names,
                    float value = 0) const {
    std::vector<TensorSpec> specs;
    for (const std::string& name : names) {
      specs.push_back({name, DType::kFloat32, {2}});
    }
    auto writer = SafetensorsWriter::Create(Path(file), specs);
    ASSERT_OK(writer);
    for (const std::string& name : names) {
      ASSERT_OK(writer->Write(
          name, Tensor::FromVector<float>({value, value + 1}, {2})));
    }
    ASSERT_OK(writer->Finish());
  }

  void WriteIndex(const std::map<std::string, std::string>& map,
                  double total_size) const {
    const nlohmann::json json = {{"metadata", {{"total_size", total_size}}},
                                 {"weight_map", map}};
    ASSERT_OK(WriteFile(Path("model.safetensors.index.json"), json.dump()));
  }

  // Two files, "a" and "b" in the first, "c" in the second.
  void WriteTwoFiles() const {
    WriteTensors("one.safetensors", {"a", "b"}, 10);
    WriteTensors("two.safetensors", {"c"}, 20);
    WriteIndex({{"a", "one.safetensors"},
                {"b", "one.safetensors"},
                {"c", "two.safetensors"}},
               24);
  }

  void ExpectRefused(const std::string& message) const {
    const auto weights = OpenFolderWeights(folder_);
    EXPECT_THAT(weights, StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(weights, StatusIs(absl::StatusCode::kInvalidArgument,
                                  Path("model.safetensors.index.json")));
  }

  const std::string folder_;
};

std::vector<float> Values(const WeightSource& source, const std::string& name) {
  const auto tensor = source.ReadElements(name, 0, 2, CpuDevice());
  EXPECT_OK(tensor);
  return tensor.ok() ? tensor->ToVector<float>() : std::vector<float>();
}

TEST_F(FolderWeightsTest, OneFile) {
  WriteTensors("model.safetensors", {"a", "b"}, 5);
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().size(), 2u);
  EXPECT_EQ(Values(*weights->source, "b"), (std::vector<float>{5, 6}));
  EXPECT_TRUE(weights->warnings.empty());
}

TEST_F(FolderWeightsTest, ManyFiles) {
  WriteTwoFiles();
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().size(), 3u);
  EXPECT_EQ(Values(*weights->source, "a"), (std::vector<float>{10, 11}));
  EXPECT_EQ(Values(*weights->source, "c"), (std::vector<float>{20, 21}));
  EXPECT_EQ(weights->source->weights().at("c").path, Path("two.safetensors"));
  EXPECT_TRUE(weights->warnings.empty());
}

// As transformers looks for them.
TEST_F(FolderWeightsTest, OneFileWinsOverAnIndex) {
  WriteTwoFiles();
  WriteTensors("model.safetensors", {"a"}, 5);
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  EXPECT_EQ(Values(*weights->source, "a"), (std::vector<float>{5, 6}));
  ASSERT_EQ(weights->warnings.size(), 1u);
  EXPECT_THAT(weights->warnings[0], ::testing::HasSubstr("is not used"));
}

TEST_F(FolderWeightsTest, NoWeights) {
  EXPECT_THAT(OpenFolderWeights(folder_),
              StatusIs(absl::StatusCode::kNotFound,
                       folder_ + ": holds no weights; model.safetensors"));
  EXPECT_THAT(OpenFolderWeights(Path("nowhere")),
              StatusIs(absl::StatusCode::kNotFound, "holds no weights"));
}

// CKC-12: a file that is gone, one that is cut, a tensor that moved.
TEST_F(FolderWeightsTest, AFileThatIsMissing) {
  WriteTwoFiles();
  std::filesystem::remove(Path("two.safetensors"));
  EXPECT_THAT(OpenFolderWeights(folder_),
              StatusIs(absl::StatusCode::kNotFound, Path("two.safetensors")));
}

TEST_F(FolderWeightsTest, AFileThatIsCut) {
  WriteTwoFiles();
  const std::string path = Path("two.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(OpenFolderWeights(folder_),
              StatusIs(absl::StatusCode::kDataLoss, path + ": truncated"));
}

TEST_F(FolderWeightsTest, ATensorThatIsElsewhere) {
  WriteTensors("one.safetensors", {"a"});
  WriteTensors("two.safetensors", {"b", "c"});
  WriteIndex({{"a", "one.safetensors"},
              {"b", "one.safetensors"},
              {"c", "two.safetensors"}},
             24);
  ExpectRefused(
      "tensor \"b\" is in two.safetensors, the index has it in "
      "one.safetensors");
}

TEST_F(FolderWeightsTest, ATensorThatIsNowhere) {
  WriteTensors("one.safetensors", {"a"});
  WriteIndex({{"a", "one.safetensors"}, {"b", "one.safetensors"}}, 16);
  ExpectRefused("tensor \"b\" is not in one.safetensors");
}

TEST_F(FolderWeightsTest, ATensorThatIsInTwoFiles) {
  WriteTensors("one.safetensors", {"a", "b"});
  WriteTensors("two.safetensors", {"b", "c"});
  WriteIndex({{"a", "one.safetensors"},
              {"b", "one.safetensors"},
              {"c", "two.safetensors"}},
             24);
  ExpectRefused(
      "tensor \"b\" is in two files, one.safetensors and two.safetensors");
}

TEST_F(FolderWeightsTest, WhatTheIndexLeavesOutIsReadAllTheSame) {
  WriteTensors("one.safetensors", {"a", "b"}, 3);
  WriteIndex({{"a", "one.safetensors"}}, 16);
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  EXPECT_EQ(Values(*weights->source, "b"), (std::vector<float>{3, 4}));
  ASSERT_EQ(weights->warnings.size(), 1u);
  EXPECT_THAT(weights->warnings[0],
              ::testing::HasSubstr("leaves out \"b\" of one.safetensors"));
}

TEST_F(FolderWeightsTest, AWrongTotalIsAWarning) {
  WriteTensors("one.safetensors", {"a"});
  WriteIndex({{"a", "one.safetensors"}}, 9);
  const auto weights = OpenFolderWeights(folder_);
  ASSERT_OK(weights);
  ASSERT_EQ(weights->warnings.size(), 1u);
  EXPECT_THAT(weights->warnings[0],
              ::testing::HasSubstr("says 9 bytes in all, its files hold 8"));
}

TEST_F(FolderWeightsTest, AnIndexThatIsWrong) {
  ASSERT_OK(WriteFile(Path("model.safetensors.index.json"), "{"));
  ExpectRefused("is not a JSON object");
}

}  // namespace
}  // namespace tessera
