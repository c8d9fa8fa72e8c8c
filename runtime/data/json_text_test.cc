// Objects are read; what is none, or is made to cost memory, is an error.
#include "runtime/data/json_text.h"

#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(JsonTextTest, AnObjectIsRead) {
  const auto json =
      ParseJsonObject(R"({"a": [1, -2.5, "x"], "b": {"c": null}})");
  ASSERT_OK(json);
  EXPECT_EQ((*json)["a"][1], -2.5);
  EXPECT_TRUE((*json)["b"]["c"].is_null());
}

TEST(JsonTextTest, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "1", "{", "{\"a\":1}x", "{\"a\":\"\xFF\"}",
                           "{\"a\":1,}", "{'a':1}", "{\"a\":NaN}"}) {
    EXPECT_THAT(
        ParseJsonObject(text),
        StatusIs(absl::StatusCode::kInvalidArgument, "is not a JSON object"))
        << text;
  }
}

TEST(JsonTextTest, AKeyMayHaveToStandOnce) {
  const char* twice = R"({"a": {"b": 1}, "c": [{"b": 1, "d": 2, "b": 3}]})";
  EXPECT_OK(ParseJsonObject(twice));
  EXPECT_THAT(ParseJsonObject(twice, JsonKeys::kOnce),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "holds the key \"b\" twice"));
  EXPECT_OK(ParseJsonObject(R"({"a": {"a": [{"a": 1}, {"a": 1}]}})",
                            JsonKeys::kOnce));
}

TEST(JsonTextTest, DepthIsBounded) {
  const auto nested = [](int depth) {
    std::string text = "{\"a\":";
    for (int i = 1; i < depth; ++i) text += '[';
    text += '0';
    for (int i = 1; i < depth; ++i) text += ']';
    return text + "}";
  };
  EXPECT_OK(ParseJsonObject(nested(100)));
  EXPECT_THAT(ParseJsonObject(nested(102)),
              StatusIs(absl::StatusCode::kInvalidArgument, "100 deep"));
}

// Each text is a bomb: a megabyte or two of the smallest parts there are.
TEST(JsonTextTest, MemoryIsBounded) {
  for (const std::string unit :
       {"0,", "{},", "[],", "\"\",", "[0],", "{\"a\":0},", "[0,0,0],"}) {
    std::string text = "{\"a\":[";
    while (text.size() < 1'500'000) text += unit;
    text += "0]}";
    const AllocationPeak peak;
    const auto json = ParseJsonObject(text);
    EXPECT_LE(peak.bytes(),
              10 * static_cast<int64_t>(text.size()) + (int64_t{4} << 20))
        << unit;
    EXPECT_THAT(json, StatusIs(absl::StatusCode::kInvalidArgument,
                               "too many values for its size"))
        << unit;
  }
}

// What people write is far from the bound.
TEST(JsonTextTest, LongFilesAreRead) {
  std::string index = "{\"weight_map\":{";
  std::string labels = "{\"id2label\":{";
  nlohmann::json tensors;  // As manifests have them.
  for (int i = 0; i < 20000; ++i) {
    const std::string number = std::to_string(i);
    index += "\"model.layers." + number +
             ".self_attn.q_proj.weight\":\"model-00001-of-00009.safetensors\",";
    if (i < 2000) labels += "\"" + number + "\":\"L" + number + "\",";
    tensors["layers." + number] = {{"dtype", "float32"},
                                   {"shape", {2}},
                                   {"pieces", {{0, 0, 1}, {1, 1, 1}}}};
  }
  for (const std::string& text :
       {index + "\"\":\"\"}}", labels + "\"\":\"\"}}", tensors.dump(1)}) {
    EXPECT_OK(ParseJsonObject(text)) << text.substr(0, 20);
  }
}

}  // namespace
}  // namespace tessera
