// The index of sharded weights: what it may say, and what it may not.
#include "checkpoint/huggingface/weight_index.h"

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

void ExpectRefused(const std::string& text, const std::string& message) {
  EXPECT_THAT(ParseWeightIndex(text, ".safetensors"),
              StatusIs(absl::StatusCode::kInvalidArgument, message))
      << text;
}

TEST(WeightIndexTest, ReadsTheMap) {
  const auto index = ParseWeightIndex(
      R"({"metadata": {"total_size": 12}, "weight_map":
          {"a": "x-1.safetensors", "b": "y.safetensors"}})",
      ".safetensors");
  ASSERT_OK(index);
  EXPECT_EQ(index->weight_map.size(), 2u);
  EXPECT_EQ(index->weight_map.at("a"), "x-1.safetensors");
  EXPECT_EQ(index->total_size, 12);
}

// Some writers leave metadata out or put other things into it.
TEST(WeightIndexTest, TotalSizeIsOnlyInformative) {
  for (const char* metadata :
       {R"("metadata": {},)", R"("metadata": {"total_size": "12"},)",
        R"("metadata": null,)", R"("other": [1],)", ""}) {
    const auto index = ParseWeightIndex(
        "{" + std::string(metadata) + R"("weight_map": {"a": "x.bin"}})",
        ".bin");
    ASSERT_OK(index);
    EXPECT_FALSE(index->total_size.has_value());
  }
  const auto real = ParseWeightIndex(
      R"({"metadata": {"total_size": 1.5e3}, "weight_map": {"a": "x.bin"}})",
      ".bin");
  ASSERT_OK(real);
  EXPECT_EQ(real->total_size, 1500);
}

TEST(WeightIndexTest, Refusals) {
  ExpectRefused("", "is not a JSON object");
  ExpectRefused("[]", "is not a JSON object");
  ExpectRefused(R"({"weight_map": {"a": "x.safetensors")",
                "is not a JSON object");
  ExpectRefused("{}", "has no object \"weight_map\"");
  ExpectRefused(R"({"weight_map": []})", "has no object \"weight_map\"");
  ExpectRefused(R"({"weight_map": {}})", "\"weight_map\" is empty");
  ExpectRefused(R"({"weight_map": {"a": 3}})",
                "tensor \"a\": its file is 3, but must be a string");
  ExpectRefused(R"({"weight_map": {"a": "../x.safetensors"}})",
                "leads out of the folder");
  ExpectRefused(R"({"weight_map": {"a": "/x.safetensors"}})",
                "leads out of the folder");
  ExpectRefused(R"({"weight_map": {"a": "x\u0000.safetensors"}})",
                "leads out of the folder");
  ExpectRefused(R"({"weight_map": {"a": "x.bin"}})",
                "does not end in .safetensors");
  ExpectRefused(R"({"weight_map": {"a": ".safetensors"}})",
                "does not end in .safetensors");
  ExpectRefused(
      R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})",
      "the key \"a\" twice");
}

// The text of transformers: sorted, two spaces, a final newline.
TEST(WeightIndexTest, IsWrittenAsOthersWriteIt) {
  const std::string text = SerializeWeightIndex(
      {{"b", "m-2.safetensors"}, {"a\xc3\xa9", "m-1.safetensors"}}, 40, 10);
  EXPECT_EQ(text,
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_parameters\": 10,\n"
            "    \"total_size\": 40\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\\u00e9\": \"m-1.safetensors\",\n"
            "    \"b\": \"m-2.safetensors\"\n"
            "  }\n"
            "}\n");
  const auto read = ParseWeightIndex(text, ".safetensors");
  ASSERT_OK(read);
  EXPECT_EQ(read->weight_map.at("a\xc3\xa9"), "m-1.safetensors");
}

}  // namespace
}  // namespace tessera
