#include "runtime/data/tokenizer/added_tokens.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

AddedToken Token(int32_t id, const std::string& content) {
  AddedToken token;
  token.id = id;
  token.content = content;
  return token;
}

// Texts, and tokens as "#id".
std::vector<std::string> Split(const AddedTokens& tokens,
                               const std::string& text, bool normalized = false,
                               bool with_special = true) {
  std::vector<std::string> parts;
  for (const TokenOrText& part : tokens.Split(text, normalized, with_special)) {
    parts.push_back(part.id == kNoToken
                        ? text.substr(part.begin, part.end - part.begin)
                        : "#" + std::to_string(part.id));
  }
  return parts;
}

TEST(StringMatcherTest, LeftmostThenLongest) {
  const StringMatcher matcher({"ab", "abcd", "bc", "", "ab"});
  const auto match = matcher.Find("xabcx", 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 1u);
  EXPECT_EQ(match->end, 3u);
  EXPECT_EQ(match->string, 0u);
  EXPECT_EQ(matcher.Find("xabcd", 0)->string, 1u);
  EXPECT_EQ(matcher.Find("xabcd", 2)->string, 2u);
  EXPECT_FALSE(matcher.Find("a b c", 0).has_value());
}

TEST(AddedTokensTest, CutsTheText) {
  const AddedTokens tokens({Token(1, "<a>"), Token(2, "<a><b>")}, nullptr);
  EXPECT_THAT(Split(tokens, "x<a>y<a><b><a>"),
              ElementsAre("x", "#1", "y", "#2", "#1"));
  EXPECT_THAT(Split(tokens, "x<a"), ElementsAre("x<a"));
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
}

TEST(AddedTokensTest, TakesWhiteSpaceAround) {
  AddedToken left = Token(1, "<l>");
  left.lstrip = true;
  AddedToken right = Token(2, "<r>");
  right.rstrip = true;
  const AddedTokens tokens({left, right}, nullptr);
  EXPECT_THAT(Split(tokens, "a \u3000<l> b"), ElementsAre("a", "#1", " b"));
  EXPECT_THAT(Split(tokens, "a <r> \n b"), ElementsAre("a ", "#2", "b"));
  EXPECT_THAT(Split(tokens, "<r>  <l>"), ElementsAre("#2", "#1"));
}

TEST(AddedTokensTest, SingleWords) {
  AddedToken word = Token(1, "cat");
  word.single_word = true;
  const AddedTokens tokens({word}, nullptr);
  EXPECT_THAT(Split(tokens, "cat cats \u00E9cat cat.cat_"),
              ElementsAre("#1", " cats \u00E9cat ", "#1", ".cat_"));
}

TEST(AddedTokensTest, NormalizedOnesAreFoundAfterNormalizing) {
  AddedToken word = Token(1, "CAT");
  word.normalized = true;
  const NormalizerPointer lower = LowercaseNormalizer();
  const AddedTokens tokens({word, Token(2, "DOG")}, lower.get());
  EXPECT_THAT(Split(tokens, "CAT DOG", false), ElementsAre("CAT ", "#2"));
  EXPECT_THAT(Split(tokens, "cat dog", true), ElementsAre("#1", " dog"));
  EXPECT_EQ(*tokens.TextOf(1), "cat");
  EXPECT_EQ(*tokens.TextOf(2), "DOG");
  EXPECT_EQ(tokens.TextOf(3), nullptr);
}

TEST(AddedTokensTest, SpecialOnesMayBeText) {
  AddedToken end = Token(1, "<end>");
  end.special = true;
  const AddedTokens tokens({end, Token(2, "<x>")}, nullptr);
  EXPECT_THAT(Split(tokens, "a<end><x>", false, false),
              ElementsAre("a<end>", "#2"));
  EXPECT_EQ(tokens.Find(1)->content, "<end>");
  EXPECT_EQ(tokens.Find("<x>")->id, 2);
  EXPECT_EQ(tokens.Find("<y>"), nullptr);
}

}  // namespace
}  // namespace tessera
