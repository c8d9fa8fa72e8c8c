#include "runtime/data/tokenizer/unicode.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(UnicodeTest, Spaces) {
  for (const char32_t c :
       std::u32string(U"\t\n\v\f\r \u0085\u00A0\u1680\u2003\u2028\u3000")) {
    EXPECT_TRUE(IsSpace(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : std::u32string(U"a\u180E\u200B\u2060\uFEFF")) {
    EXPECT_FALSE(IsSpace(c)) << static_cast<uint32_t>(c);
  }
}

TEST(UnicodeTest, Numbers) {
  for (const char32_t c : std::u32string(U"09\u00BD\u0663\u2167\u2460")) {
    EXPECT_TRUE(IsNumber(c));
  }
  for (const char32_t c : std::u32string(U"a-\u4E00 ")) {
    EXPECT_FALSE(IsNumber(c));
  }
}

TEST(UnicodeTest, Punctuation) {
  for (const char32_t c : std::u32string(U"!$+<=>^`|~_\u00BF\u3001")) {
    EXPECT_TRUE(IsPunctuation(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : std::u32string(U"a0 \n\u007F\u00B1\u20AC")) {
    EXPECT_FALSE(IsPunctuation(c)) << static_cast<uint32_t>(c);
  }
}

TEST(UnicodeTest, WordCharacters) {
  for (const char32_t c :
       std::u32string(U"a_0\u00E9\u4E00\u0301\u24B6\u200D")) {
    EXPECT_TRUE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : std::u32string(U"- \u00BD\u2581")) {
    EXPECT_FALSE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
  }
}

TEST(UnicodeTest, LowerCase) {
  EXPECT_EQ(ToLower("ABC \u00C9\u0394"), "abc \u00E9\u03B4");
  EXPECT_EQ(ToLower("\u0130"), "i\u0307");
  EXPECT_EQ(ToLower("\u03A3"), "\u03C3");  // Also at the end of a word.
  EXPECT_EQ(ToLower("A\u03A3"), "a\u03C3");
}

TEST(UnicodeTest, NormalForms) {
  const std::string composed = "\u00C5\uFB01\u1E69";
  EXPECT_EQ(Normalized("A\u030A\uFB01\u1E63\u0307", NormalForm::kNFC),
            composed);
  EXPECT_EQ(Normalized(composed, NormalForm::kNFD),
            "A\u030A\uFB01s\u0323\u0307");
  EXPECT_EQ(Normalized(composed, NormalForm::kNFKC), "\u00C5fi\u1E69");
  EXPECT_EQ(Normalized(composed, NormalForm::kNFKD), "A\u030Afis\u0323\u0307");
  EXPECT_EQ(Normalized("\u212B", NormalForm::kNFC), "\u00C5");
  EXPECT_EQ(Normalized("\uD55C", NormalForm::kNFD), "\u1112\u1161\u11AB");
  EXPECT_EQ(Normalized("plain", NormalForm::kNFKD), "plain");
  EXPECT_EQ(Normalized("", NormalForm::kNFC), "");
}

}  // namespace
}  // namespace tessera
