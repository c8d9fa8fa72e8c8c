// Names, shapes and types of other people's files against a model's.
#include "checkpoint/huggingface/weight_match.h"

#include <map>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::map<std::string, WeightInfo> File(
    const std::vector<std::pair<std::string, Shape>>& tensors,
    const std::string& type = "F32",
    std::optional<DType> dtype = DType::kFloat32) {
  std::map<std::string, WeightInfo> weights;
  for (const auto& [name, shape] : tensors) {
    weights[name] = {name, type, dtype, shape, "file"};
  }
  return weights;
}

// A model of an embedding, tied to the head, and a matrix.
std::vector<WantedWeight> Tied() {
  return {{{"model.embed.weight", "lm_head.weight"}, DType::kFloat32, {3, 2}},
          {{"model.up.weight"}, DType::kFloat32, {4, 2}}};
}

std::string ErrorOf(const std::map<std::string, WeightInfo>& file) {
  const auto matches = MatchWeights(Tied(), file);
  EXPECT_EQ(matches.status().code(), absl::StatusCode::kFailedPrecondition);
  return matches.status().ToString();
}

TEST(WeightMatchTest, PlainNames) {
  const auto matches = MatchWeights(
      Tied(),
      File({{"model.embed.weight", {3, 2}}, {"model.up.weight", {4, 2}}}));
  ASSERT_OK(matches);
  ASSERT_EQ(matches->size(), 2u);
  EXPECT_EQ((*matches)[0].name, "model.embed.weight");
  EXPECT_EQ((*matches)[1].name, "model.up.weight");
  EXPECT_TRUE((*matches)[0].tied.empty());
}

TEST(WeightMatchTest, NamesOfABaseModel) {
  const auto matches = MatchWeights(
      Tied(), File({{"embed.weight", {3, 2}}, {"up.weight", {4, 2}}}));
  ASSERT_OK(matches);
  EXPECT_EQ((*matches)[0].name, "embed.weight");
  EXPECT_EQ((*matches)[1].name, "up.weight");
}

TEST(WeightMatchTest, BothKindsOfNamesAreRefused) {
  EXPECT_THAT(
      ErrorOf(File({{"embed.weight", {3, 2}}, {"model.up.weight", {4, 2}}})),
      HasSubstr("names with and without \"model.\": model.up.weight and "
                "embed.weight"));
}

// A file may keep either name of what is tied, or both.
TEST(WeightMatchTest, TiedParameters) {
  const auto head = MatchWeights(
      Tied(), File({{"lm_head.weight", {3, 2}}, {"model.up.weight", {4, 2}}}));
  ASSERT_OK(head);
  EXPECT_EQ((*head)[0].name, "lm_head.weight");
  const auto both = MatchWeights(Tied(), File({{"lm_head.weight", {3, 2}},
                                               {"model.embed.weight", {3, 2}},
                                               {"model.up.weight", {4, 2}}}));
  ASSERT_OK(both);
  EXPECT_EQ((*both)[0].name, "model.embed.weight");
  EXPECT_EQ((*both)[0].tied, std::vector<std::string>{"lm_head.weight"});
}

TEST(WeightMatchTest, OneErrorListsEverything) {
  const std::string error = ErrorOf(File({{"model.down.weight", {1}},
                                          {"model.up.weight", {2, 4}},
                                          {"other", {1}}}));
  EXPECT_THAT(error, HasSubstr("missing: model.embed.weight;"));
  EXPECT_THAT(error, HasSubstr("unexpected: model.down.weight, other;"));
  EXPECT_THAT(error, HasSubstr("model.up.weight is [2, 4], the model wants "
                               "[4, 2] (it is the transpose)"));
  EXPECT_THAT(ErrorOf(File({{"model.up.weight", {2, 3}}})),
              HasSubstr("is [2, 3], the model wants [4, 2]"));
}

TEST(WeightMatchTest, WhatIsAskedForIsIgnored) {
  const auto file = File({{"model.up.weight", {4, 2}}, {"other", {1}}});
  EXPECT_THAT(
      MatchWeights(Tied(), file, {.allow_missing = true}),
      StatusIs(absl::StatusCode::kFailedPrecondition, "unexpected: other"));
  EXPECT_THAT(MatchWeights(Tied(), file, {.allow_unexpected = true}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "missing: model.embed.weight"));
  const auto matches = MatchWeights(
      Tied(), file, {.allow_missing = true, .allow_unexpected = true});
  ASSERT_OK(matches);
  EXPECT_FALSE((*matches)[0].name.has_value());
  EXPECT_EQ((*matches)[1].name, "model.up.weight");
}

TEST(WeightMatchTest, OldBuffersArePassedOver) {
  auto file = File({{"model.embed.weight", {3, 2}},
                    {"model.up.weight", {4, 2}},
                    {"model.h.0.attn.bias", {1, 1, 8, 8}},
                    {"model.h.0.attn.masked_bias", {}},
                    {"model.layers.0.self_attn.rotary_emb.inv_freq", {4}}});
  ASSERT_OK(MatchWeights(Tied(), file));
  file["model.h.0.attn.c_proj.bias"] =
      File({{"model.h.0.attn.c_proj.bias", {2}}}).begin()->second;
  EXPECT_THAT(ErrorOf(file), HasSubstr("unexpected: model.h.0.attn.c_proj"));
}

TEST(WeightMatchTest, Types) {
  const std::vector<WantedWeight> wanted = {{{"x"}, DType::kFloat32, {2}}};
  const auto match = [&](const std::string& type, std::optional<DType> dtype) {
    return MatchWeights(wanted, File({{"x", {2}}}, type, dtype));
  };
  EXPECT_OK(match("BF16", DType::kBFloat16));
  EXPECT_OK(match("F64", DType::kFloat64));
  EXPECT_THAT(match("I64", DType::kInt64),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "x is I64, which is not converted to float32"));
  EXPECT_THAT(match("F8_E4M3", std::nullopt),
              StatusIs(absl::StatusCode::kFailedPrecondition, "x is F8_E4M3"));
  const auto counts = MatchWeights({{{"n"}, DType::kInt64, {1}}},
                                   File({{"n", {1}}}, "I64", DType::kInt64));
  EXPECT_OK(counts);
}

TEST(WeightMatchTest, NothingAtAll) {
  EXPECT_OK(MatchWeights({}, {}));
  EXPECT_THAT(MatchWeights({}, File({{"x", {1}}})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "unexpected: x"));
}

}  // namespace
}  // namespace tessera
