#include "runtime/data/tokenizer/decoder.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/tokenizer/post_processor.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Decode(const DecoderPointer& decoder,
                                std::vector<std::string> tokens) {
  decoder->Decode(tokens);
  return tokens;
}

TEST(DecoderTest, ByteLevel) {
  const DecoderPointer decoder = ByteLevelDecoder();
  EXPECT_THAT(Decode(decoder, {"\u0120a", "\u00C3", "\u00A9"}),
              ElementsAre(" a\u00E9"));
  // A character that stands for no byte: the token is text.
  EXPECT_THAT(Decode(decoder, {"a b", "\u0120"}), ElementsAre("a b "));
  EXPECT_THAT(Decode(decoder, {"\u00E6", "\u013F", "a"}),
              ElementsAre("\uFFFDa"));
  EXPECT_THAT(Decode(decoder, {}), ElementsAre(""));
}

TEST(DecoderTest, ByteFallback) {
  const DecoderPointer decoder = ByteFallbackDecoder();
  EXPECT_THAT(Decode(decoder, {"a", "<0xE6>", "<0x9D>", "<0xb1>", "b"}),
              ElementsAre("a", "\u6771", "b"));
  EXPECT_THAT(Decode(decoder, {"<0x41>", "<0xE6>", "<0x9D>"}),
              ElementsAre("\uFFFD\uFFFD\uFFFD"));
  EXPECT_THAT(Decode(decoder, {"<0xZZ>", "<0x4>", "<0x041>"}),
              ElementsAre("<0xZZ>", "<0x4>", "<0x041>"));
}

TEST(DecoderTest, ReplaceFuseStrip) {
  EXPECT_THAT(Decode(ReplaceDecoder(Pattern::Literal("_"), " "), {"_a_", "b"}),
              ElementsAre(" a ", "b"));
  EXPECT_THAT(Decode(FuseDecoder(), {"a", "b"}), ElementsAre("ab"));
  EXPECT_THAT(Decode(StripDecoder(' ', 1, 0), {"  a ", " ", "b"}),
              ElementsAre(" a ", "", "b"));
  EXPECT_THAT(Decode(StripDecoder(U'\u2581', 2, 1), {"\u2581\u2581a\u2581"}),
              ElementsAre("a"));
  EXPECT_THAT(Decode(StripDecoder('x', 1, 1), {"x"}), ElementsAre(""));
}

TEST(DecoderTest, Metaspace) {
  EXPECT_THAT(
      Decode(MetaspaceDecoder('_', PrependScheme::kAlways), {"_a_b", "_c"}),
      ElementsAre("ab", " c"));
  EXPECT_THAT(
      Decode(MetaspaceDecoder('_', PrependScheme::kNever), {"_a_b", "_c"}),
      ElementsAre(" a b", " c"));
}

TEST(DecoderTest, SequenceInOrder) {
  std::vector<DecoderPointer> steps;
  steps.push_back(FuseDecoder());
  steps.push_back(StripDecoder('a', 1, 0));
  EXPECT_THAT(Decode(DecoderSequence(std::move(steps)), {"a", "a"}),
              ElementsAre("a"));
}

TEST(PostProcessorTest, TemplatesOneAfterTheOther) {
  const std::vector<int32_t> one = {1};
  const std::vector<int32_t> two = {2, 3};
  const PostProcessor processor(
      {{TemplateItem(one), std::nullopt}, {std::nullopt, TemplateItem(two)}});
  EXPECT_THAT(processor.Apply({7, 8}), ElementsAre(1, 7, 8, 2, 3));
  EXPECT_THAT(processor.Apply({}), ElementsAre(1, 2, 3));
  EXPECT_THAT(PostProcessor().Apply({7}), ElementsAre(7));
}

}  // namespace
}  // namespace tessera
