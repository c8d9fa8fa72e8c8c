// Documents with the model's own end, and what a model is asked to go on with.
#include "tools/training_data.h"

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::string FreshFolder() {
  const std::string folder = ::testing::TempDir() + "/training_data";
  std::filesystem::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

// Rows of eight bytes, so that a document has one to itself.
TrainingData Open(const std::string& folder, const std::string& lines) {
  EXPECT_OK(WriteFile(folder + "/data.jsonl", lines));
  TrainOptions options;
  options.data.files = {folder + "/data.jsonl"};
  options.model = LlamaConfig{.vocab_size = 256};
  options.model_folder = folder;
  options.seq = 8;
  options.validation_share = 0.1;
  return OrThrow(OpenTrainingData(options, ModelTokenizer()));
}

std::string RowText(const TokenRows& rows) {
  std::string text;
  const TokenBatch batch = rows.Batch(std::vector<int64_t>{0});
  for (const int64_t id : batch.ids_BT.ToVector<int64_t>()) {
    if (id != 0) text += static_cast<char>(id);
  }
  return text;
}

std::string PromptText(const TokenRows& rows, int64_t length) {
  const std::vector<int32_t> ids = PromptOf(rows, length);
  return {ids.begin(), ids.end()};
}

TEST(TrainingDataTest, DocumentsEndAsTheModelsFolderSays) {
  const std::string folder = FreshFolder();
  const std::string lines = R"({"text": "abcde"})"
                            "\n"
                            R"({"text": "abcde"})";
  const auto row_with = [&](const std::string& file, const std::string& json) {
    EXPECT_OK(WriteFile(folder + "/" + file, json));
    return RowText(*Open(folder, lines).train);
  };
  EXPECT_EQ(RowText(*Open(folder, lines).train), "abcde");
  EXPECT_EQ(row_with("config.json", "{}"), "abcde");
  EXPECT_EQ(row_with("config.json", R"({"eos_token_id": 33})"), "abcde!");
  EXPECT_EQ(row_with("config.json", R"({"eos_token_id": [63, 33]})"), "abcde?");
  // Ids that the model has not, also those that are 33 in 32 bits.
  for (const char* wrong : {"256", "-1", "4294967329"}) {
    EXPECT_EQ(row_with("config.json",
                       std::string(R"({"eos_token_id": )") + wrong + "}"),
              "abcde")
        << wrong;
  }
  EXPECT_EQ(row_with("generation_config.json", R"({"eos_token_id": 46})"),
            "abcde.");
}

TEST(TrainingDataTest, APromptEndsWhereTheLossBegins) {
  const std::string folder = FreshFolder();
  const std::string pair = R"({"prompt": "abc", "completion": "defg"})";
  const TrainingData pairs = Open(folder, pair + "\n" + pair);
  EXPECT_EQ(PromptText(*pairs.train, 32), "abc");
  EXPECT_EQ(PromptText(*pairs.train, 2), "ab");
  // At least one token, where all but the first is trained on.
  const std::string text = R"({"text": "abcdefg"})";
  const TrainingData texts = Open(folder, text + "\n" + text);
  EXPECT_EQ(PromptText(*texts.train, 32), "a");
}

TEST(TrainingDataTest, APromptOfAWindowIsItsBeginning) {
  const std::string folder = FreshFolder();
  ASSERT_OK(WriteFile(folder + "/text", "0123456789abcdefghij"));
  ASSERT_OK(
      WriteTokenFile(folder + "/tokens", {folder + "/text"}, ByteTokenizer()));
  const TextRows rows(TextDataset(*TokenFile::Open(folder + "/tokens"), 0, 20,
                                  /*window=*/6));
  EXPECT_EQ(PromptText(rows, 4), "0123");
  EXPECT_EQ(PromptText(rows, 32), "012345");
}

}  // namespace
}  // namespace tessera
