// The next token is chosen as the options say, the same everywhere.
#include "tools/text_generator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "runtime/data/tokenizer.h"
#include "runtime/nn/gpt2.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// How often each of 4 tokens is drawn in 20000.
std::vector<double> Shares(const SamplingOptions& options) {
  // exp of these: 1, 2, 4, 1 eighths.
  const std::vector<double> logits = {0, std::log(2), std::log(4), 0};
  std::mt19937_64 generator(5);
  std::vector<double> shares(4);
  for (int i = 0; i < 20000; ++i) {
    shares[SampleToken(logits, options, generator)] += 1.0 / 20000;
  }
  return shares;
}

void ExpectShares(const SamplingOptions& options,
                  const std::vector<double>& wanted) {
  const std::vector<double> shares = Shares(options);
  // Five standard deviations of a share of 1/2.
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(shares[i], wanted[i], 0.018) << "token " << i;
    if (wanted[i] == 0) {
      EXPECT_EQ(shares[i], 0);
    }
  }
}

TEST(TextGeneratorTest, SamplesFollowTheProbabilities) {
  ExpectShares({.temperature = 1}, {0.125, 0.25, 0.5, 0.125});
  // Half the temperature squares the odds.
  ExpectShares({.temperature = 0.5}, {1 / 22., 4 / 22., 16 / 22., 1 / 22.});
  ExpectShares({.temperature = 0}, {0, 0, 1, 0});
}

TEST(TextGeneratorTest, OnlyTheLikeliestAreLeft) {
  ExpectShares({.temperature = 1, .top_k = 2}, {0, 1 / 3., 2 / 3., 0});
  ExpectShares({.temperature = 1, .top_k = 1}, {0, 0, 1, 0});
  ExpectShares({.temperature = 1, .top_k = 9}, {0.125, 0.25, 0.5, 0.125});
  ExpectShares({.temperature = 1, .top_p = 0.5}, {0, 0, 1, 0});
  ExpectShares({.temperature = 1, .top_p = 0.75}, {0, 1 / 3., 2 / 3., 0});
  // Of equal ones the first.
  ExpectShares({.temperature = 1, .top_p = 0.8}, {1 / 7., 2 / 7., 4 / 7., 0});
  ExpectShares({.temperature = 1, .top_k = 1, .top_p = 0.9}, {0, 0, 1, 0});
  ExpectShares({.temperature = 1, .top_p = 0}, {0, 0, 1, 0});
}

// Each share by hand, from transformers' definitions.
TEST(TextGeneratorTest, TheOptionsActInOrder) {
  const std::vector<double> likeliest = {0, 0, 1, 0};
  // top_k leaves 2/3 and 1/3, so that the first alone has 0.6 of it.
  ExpectShares({.temperature = 1, .top_k = 2, .top_p = 0.6}, likeliest);
  ExpectShares({.temperature = 1, .top_k = 2, .top_p = 0.7},
               {0, 1 / 3., 2 / 3., 0});
  // All that have the logit of the third are kept.
  ExpectShares({.temperature = 1, .top_k = 3}, {0.125, 0.25, 0.5, 0.125});
  // At half the temperature the first has 16/22 = 0.727.
  ExpectShares({.temperature = 0.5, .top_p = 0.7}, likeliest);
  ExpectShares({.temperature = 0.5, .top_p = 0.75}, {0, 0.2, 0.8, 0});
  ExpectShares({.temperature = 0.5, .top_k = 2, .top_p = 0.79}, likeliest);
  // Over the likeliest: 1/4, 1/2, 1, 1/4; squared at half the temperature.
  ExpectShares({.temperature = 1, .min_p = 0.4}, {0, 1 / 3., 2 / 3., 0});
  ExpectShares({.temperature = 1, .min_p = 0.6}, likeliest);
  ExpectShares({.temperature = 1, .min_p = 1}, likeliest);
  ExpectShares({.temperature = 0.5, .min_p = 0.2}, {0, 0.2, 0.8, 0});
  ExpectShares({.temperature = 1, .top_p = 0.8, .min_p = 0.2},
               {1 / 7., 2 / 7., 4 / 7., 0});
  ExpectShares({.temperature = 1, .top_p = 0.4, .min_p = 0.2}, likeliest);
}

TEST(TextGeneratorTest, LogitsThatAreNoNumbersAreAnError) {
  std::mt19937_64 generator(5);
  for (const std::vector<double>& logits : std::vector<std::vector<double>>{
           {NAN, 1}, {1, NAN, 2}, {1, INFINITY}, {-INFINITY, -INFINITY}}) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THROWS_ERROR(
          SampleToken(logits, {.temperature = temperature}, generator),
          absl::StatusCode::kFailedPrecondition, "wanted logits");
    }
  }
  // A token may be impossible.
  EXPECT_EQ(SampleToken({-INFINITY, 1}, {.top_k = 2}, generator), 1);
}

TEST(TextGeneratorTest, WrongOptionsAreNamed) {
  const auto kWrong = absl::StatusCode::kInvalidArgument;
  EXPECT_OK(CheckSampling({}));
  EXPECT_THAT(CheckSampling({.temperature = -1}),
              StatusIs(kWrong, "temperature"));
  EXPECT_THAT(CheckSampling({.temperature = NAN}),
              StatusIs(kWrong, "temperature"));
  EXPECT_THAT(CheckSampling({.top_k = -1}), StatusIs(kWrong, "top_k"));
  EXPECT_THAT(CheckSampling({.top_p = -0.1}), StatusIs(kWrong, "top_p"));
  EXPECT_THAT(CheckSampling({.top_p = 1.5}), StatusIs(kWrong, "top_p"));
  EXPECT_THAT(CheckSampling({.min_p = -0.1}), StatusIs(kWrong, "min_p"));
  EXPECT_THAT(CheckSampling({.min_p = NAN}), StatusIs(kWrong, "min_p"));
  EXPECT_THAT(CheckSampling({.repetition_penalty = 0}),
              StatusIs(kWrong, "repetition_penalty"));
}

TEST(TextGeneratorTest, WhatWasThereBeforeIsPenalisedOnce) {
  std::vector<double> logits = {1, 2, -3, 4};
  Penalise(logits, {1, 2}, 2);
  EXPECT_EQ(logits, (std::vector<double>{1, 1, -6, 4}));
}

std::string Generate(CausalLM& model, const std::string& prompt,
                     const GenerateOptions& options) {
  std::string text;
  GenerateTokens(model, ByteTokenizer().Encode(prompt), options,
                 [&](int32_t id) { text += static_cast<char>(id); });
  return text;
}

TEST(TextGeneratorTest, TextGoesOnBeyondThePositionsOfTheModel) {
  GPT2LMHeadModel model({.vocab_size = 256,
                         .n_positions = 8,
                         .n_embd = 16,
                         .n_layer = 1,
                         .n_head = 2});
  InitializeParameters(model, 3);
  model.Eval();
  const GenerateOptions options = {.num_tokens = 30, .seed = 1};
  const std::string text = Generate(model, "a", options);
  EXPECT_EQ(text.size(), 30u);
  EXPECT_EQ(Generate(model, "a", options), text);
  // Only the last positions of a prompt that is too long count.
  EXPECT_EQ(Generate(model, "xxxxxabcdefgh", options),
            Generate(model, "yabcdefgh", options));
  EXPECT_THROWS_ERROR(Generate(model, "", options),
                      absl::StatusCode::kInvalidArgument, "prompt is empty");
  for (const int64_t wrong : {int64_t{-10}, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    EXPECT_THROWS_ERROR(Generate(model, "abc", {.num_tokens = wrong}),
                        absl::StatusCode::kInvalidArgument,
                        "num_tokens: wanted 0 to");
  }
  EXPECT_EQ(Generate(model, "abc", {.num_tokens = 0}), "");
}

TEST(TextGeneratorTest, AStopIdEndsTheTextAndIsNotInIt) {
  GPT2LMHeadModel model({.vocab_size = 256,
                         .n_positions = 64,
                         .n_embd = 16,
                         .n_layer = 1,
                         .n_head = 2});
  InitializeParameters(model, 3);
  GenerateOptions options = {.num_tokens = 30, .seed = 1};
  const std::string text = Generate(model, "a", options);
  const auto stop = static_cast<uint8_t>(text[7]);
  options.stop_ids = {-1, stop};
  EXPECT_EQ(Generate(model, "a", options), text.substr(0, text.find(text[7])));
}

TEST(TextGeneratorTest, AHighPenaltyRepeatsNothing) {
  GPT2LMHeadModel model({.vocab_size = 256,
                         .n_positions = 64,
                         .n_embd = 16,
                         .n_layer = 1,
                         .n_head = 2});
  InitializeParameters(model, 3);
  GenerateOptions options = {.sampling = {.temperature = 0}, .num_tokens = 30};
  std::string text = "a" + Generate(model, "a", options);
  const auto num_different = [&] {
    return std::set<char>(text.begin(), text.end()).size();
  };
  EXPECT_LT(num_different(), 31u);
  options.sampling.repetition_penalty = 1e9;
  text = "a" + Generate(model, "a", options);
  EXPECT_EQ(num_different(), 31u);
}

TEST(TextGeneratorTest, GreedyTokensAreThoseWithoutACache) {
  GPT2LMHeadModel model({.vocab_size = 256,
                         .n_positions = 16,
                         .n_embd = 16,
                         .n_layer = 2,
                         .n_head = 2});
  InitializeParameters(model, 4);
  model.Eval();
  const GenerateOptions options = {.sampling = {.temperature = 0},
                                   .num_tokens = 10};
  const std::string text = Generate(model, "seed", options);
  std::string whole = "seed";
  for (int i = 0; i < 10; ++i) {
    KeyValueCache cache = model.NewCache(1, 16);
    std::vector<int64_t> ids;
    for (const char c : whole) ids.push_back(static_cast<unsigned char>(c));
    const Tensor input =
        Tensor::FromVector(ids, Shape{1, static_cast<int64_t>(ids.size())});
    const std::vector<double> logits =
        model.NextLogits(input, cache).ToDoubles();
    whole += static_cast<char>(std::max_element(logits.begin(), logits.end()) -
                               logits.begin());
  }
  EXPECT_EQ("seed" + text, whole);
}

}  // namespace
}  // namespace tessera
