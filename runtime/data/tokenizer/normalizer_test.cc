#include "runtime/data/tokenizer/normalizer.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(NormalizerTest, UnicodeForms) {
  EXPECT_EQ(UnicodeNormalizer(NormalForm::kNFC)->Normalize("A\u030A"),
            "\u00C5");
  EXPECT_EQ(UnicodeNormalizer(NormalForm::kNFKD)->Normalize("\uFB01"), "fi");
}

TEST(NormalizerTest, PrependsToWhatIsNotEmpty) {
  const NormalizerPointer prepend = PrependNormalizer("\u2581");
  EXPECT_EQ(prepend->Normalize("a"), "\u2581a");
  EXPECT_EQ(prepend->Normalize("\u2581a"), "\u2581\u2581a");
  EXPECT_EQ(prepend->Normalize(""), "");
}

TEST(NormalizerTest, ReplacesStringsAndPatterns) {
  EXPECT_EQ(
      ReplaceNormalizer(Pattern::Literal(" "), "\u2581")->Normalize(" a  b"),
      "\u2581a\u2581\u2581b");
  EXPECT_EQ(
      ReplaceNormalizer(*Pattern::Regex("[0-9]+"), "#")->Normalize("a12b3"),
      "a#b#");
  EXPECT_EQ(ReplaceNormalizer(*Pattern::Regex("x*"), "-")->Normalize("axb"),
            "-a-b-");
}

TEST(NormalizerTest, StripsEitherEnd) {
  const std::string text = " \u3000a b\n\u00A0";
  EXPECT_EQ(StripNormalizer(true, false)->Normalize(text), "a b\n\u00A0");
  EXPECT_EQ(StripNormalizer(false, true)->Normalize(text), " \u3000a b");
  EXPECT_EQ(StripNormalizer(true, true)->Normalize(text), "a b");
  EXPECT_EQ(StripNormalizer(true, true)->Normalize(" \n"), "");
}

TEST(NormalizerTest, SequenceInOrder) {
  std::vector<NormalizerPointer> steps;
  steps.push_back(LowercaseNormalizer());
  steps.push_back(ReplaceNormalizer(Pattern::Literal("a"), "B"));
  EXPECT_EQ(NormalizerSequence(std::move(steps))->Normalize("AbA"), "BbB");
}

}  // namespace
}  // namespace tessera
