#include "runtime/data/tokenizer/pre_tokenizer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Cut(const PreTokenizerPointer& step,
                             const std::string& text, bool at_start = true) {
  Pieces pieces(text, at_start);
  step->Apply(pieces);
  std::vector<std::string> texts;
  for (const Piece& piece : pieces.pieces) {
    texts.emplace_back(pieces.TextOf(piece));
  }
  return texts;
}

std::vector<std::string> CutAtDash(SplitBehavior behavior, bool invert,
                                   const std::string& text) {
  return Cut(SplitPreTokenizer(Pattern::Literal("-"), behavior, invert), text);
}

TEST(SplitTest, EachBehavior) {
  const std::string text = "a-b--c-";
  EXPECT_THAT(CutAtDash(SplitBehavior::kIsolated, false, text),
              ElementsAre("a", "-", "b", "-", "-", "c", "-"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kRemoved, false, text),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kMergedWithPrevious, false, text),
              ElementsAre("a-", "b-", "-", "c-"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kMergedWithNext, false, text),
              ElementsAre("a", "-b", "-", "-c", "-"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kContiguous, false, text),
              ElementsAre("a", "-", "b", "--", "c", "-"));
}

TEST(SplitTest, EachBehaviorInverted) {
  const std::string text = "-a--b";
  EXPECT_THAT(CutAtDash(SplitBehavior::kIsolated, true, text),
              ElementsAre("-", "a", "-", "-", "b"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kRemoved, true, text),
              ElementsAre("-", "-", "-"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kMergedWithPrevious, true, text),
              ElementsAre("-a", "-", "-b"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kMergedWithNext, true, text),
              ElementsAre("-", "a-", "-", "b"));
  EXPECT_THAT(CutAtDash(SplitBehavior::kContiguous, true, text),
              ElementsAre("-", "a", "--", "b"));
}

TEST(SplitTest, EmptyTextsAndEmptyMatches) {
  EXPECT_THAT(CutAtDash(SplitBehavior::kIsolated, false, ""), IsEmpty());
  EXPECT_THAT(CutAtDash(SplitBehavior::kRemoved, false, "--"), IsEmpty());
  EXPECT_THAT(Cut(SplitPreTokenizer(Pattern::Literal(""),
                                    SplitBehavior::kIsolated, false),
                  "a\u6771b"),
              ElementsAre("a", "\u6771", "b"));
}

TEST(ByteLevelTest, CutsAsGpt2Does) {
  const PreTokenizerPointer step =
      ByteLevelPreTokenizer({.add_prefix_space = false});
  EXPECT_THAT(Cut(step, "It's  we'LL 12,3  \n x"),
              ElementsAre("It", "'s", " ", " we", "'", "LL", " 12", ",", "3",
                          "  \n", " x"));
  EXPECT_THAT(Cut(step, "a  "), ElementsAre("a", "  "));
}

TEST(ByteLevelTest, OptionsChangeTheText) {
  EXPECT_THAT(Cut(ByteLevelPreTokenizer({}), "a b"), ElementsAre(" a", " b"));
  EXPECT_THAT(Cut(ByteLevelPreTokenizer({}), " a"), ElementsAre(" a"));
  EXPECT_THAT(Cut(ByteLevelPreTokenizer({.use_regex = false, .rewrite = true}),
                  "\u00E9 b"),
              ElementsAre("\u0120\u00C3\u00A9\u0120b"));
}

TEST(DigitsTest, TogetherOrEachByItself) {
  EXPECT_THAT(Cut(DigitsPreTokenizer(false), "a12\u00BDb"),
              ElementsAre("a", "12\u00BD", "b"));
  EXPECT_THAT(Cut(DigitsPreTokenizer(true), "a12b"),
              ElementsAre("a", "1", "2", "b"));
}

TEST(WhitespaceTest, WordsAndTheRest) {
  EXPECT_THAT(
      Cut(WhitespacePreTokenizer(), "Hey, e\u0301t\u200Dx \u00BD!? a_b"),
      ElementsAre("Hey", ",", "e\u0301t\u200Dx", "\u00BD!?", "a_b"));
  EXPECT_THAT(Cut(WhitespaceSplitPreTokenizer(), " Hey, \u3000you\n"),
              ElementsAre("Hey,", "you"));
  EXPECT_THAT(Cut(PunctuationPreTokenizer(SplitBehavior::kIsolated), "a.b$"),
              ElementsAre("a", ".", "b", "$"));
}

TEST(MetaspaceTest, Schemes) {
  const auto cut = [](PrependScheme scheme, bool split, const char* text,
                      bool at_start) {
    return Cut(
        MetaspacePreTokenizer(
            {.replacement = "_", .prepend_scheme = scheme, .split = split}),
        text, at_start);
  };
  EXPECT_THAT(cut(PrependScheme::kAlways, true, "a  b", false),
              ElementsAre("_a", "_", "_b"));
  EXPECT_THAT(cut(PrependScheme::kAlways, false, " a b", false),
              ElementsAre("_a_b"));
  EXPECT_THAT(cut(PrependScheme::kFirst, true, "a b", true),
              ElementsAre("_a", "_b"));
  EXPECT_THAT(cut(PrependScheme::kFirst, true, "a b", false),
              ElementsAre("a", "_b"));
  EXPECT_THAT(cut(PrependScheme::kNever, true, "a b", true),
              ElementsAre("a", "_b"));
}

// Only the first of several pieces stands at the start.
TEST(MetaspaceTest, FirstAfterOtherSteps) {
  std::vector<PreTokenizerPointer> steps;
  steps.push_back(DigitsPreTokenizer(true));
  steps.push_back(MetaspacePreTokenizer(
      {.replacement = "_", .prepend_scheme = PrependScheme::kFirst}));
  EXPECT_THAT(Cut(PreTokenizerSequence(std::move(steps)), "1a b"),
              ElementsAre("_1", "a", "_b"));
}

}  // namespace
}  // namespace tessera
